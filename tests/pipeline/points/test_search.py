"""Which points searches ask for, and when they end: against made-up times, and without a device."""

import itertools
from collections.abc import Sequence

import pytest

from kernel_pipeline.declared import Value
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.points.search import Sampler, Study
from pipeline.points.searches import SearchBudget, Searches

BLOCKS, STAGES, WARPS = (16, 32, 64, 128, 256, 512), (1, 2, 3, 4, 5), (1, 2, 4, 8, 16)
ORDERS = ("rows", "columns")


def point(provider: str = "tiled", size: int = 64, **parameters: Value) -> Point:
    return Point(
        kernel="planted", provider=provider, problem=Values({"n": size}), parameters=Values(parameters)
    )


def grid(provider: str = "tiled", size: int = 64) -> list[Point]:
    """Return the points that fit, more than half of 300 configurations."""
    return [
        point(provider, size, block=block, stages=stages, warps=warps, order=order)
        for block, stages, warps, order in itertools.product(BLOCKS, STAGES, WARPS, ORDERS)
        if block * stages <= 1024 and block >= 8 * warps
    ]


def us(one: Point) -> float:
    """The best is one point; what lies near it is nearly as good."""
    at = one.parameters
    steps = (
        abs(BLOCKS.index(int(at["block"])) - 3)
        + abs(STAGES.index(int(at["stages"])) - 2)
        + abs(WARPS.index(int(at["warps"])) - 2)
    )
    return 10.0 * 1.2**steps * (1.1 if at["order"] == "columns" else 1.0)


def best_of(points: Sequence[Point], sampler: Sampler, seed: int, trials: int) -> float:
    study = Study(points, sampler, seed)
    for _ in range(trials):
        chosen = study.ask()
        study.tell(chosen, us(chosen))
    assert study.best is not None
    return study.best[1]


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_each_point_that_fits_is_asked_for_once_and_no_other(sampler: Sampler) -> None:
    points = grid()[:60]
    study = Study(points, sampler, 0)
    asked = []
    for number in range(len(points)):
        asked.append(study.ask())
        study.tell(asked[-1], None if number % 3 else us(asked[-1]))
    assert len(asked) == len(set(asked)) and set(asked) == set(points)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_is_the_same_for_the_same_seed_and_differs_by_seed_and_problem(sampler: Sampler) -> None:
    def asked(seed: int, size: int = 64) -> list[Values]:
        study, found = Study(grid(size=size), sampler, seed), []
        for _ in range(15):
            found.append(study.ask())
            study.tell(found[-1], us(found[-1]))
        return [one.parameters for one in found]

    assert asked(0) == asked(0)
    assert asked(0) != asked(1)
    assert asked(0) != asked(0, size=128)


def test_tpe_finds_the_best_where_random_trials_mostly_do_not() -> None:
    points, seeds = grid(), range(8)
    trials = len(points) // 4
    found = {
        sampler: sum(best_of(points, sampler, seed, trials) == 10 for seed in seeds)
        for sampler in ("random", "tpe")
    }
    assert found["tpe"] >= 6 and found["random"] <= 4


def test_a_search_of_which_every_trial_failed_goes_on() -> None:
    points = grid()
    study = Study(points, "tpe", 0)
    for _ in range(20):
        study.tell(study.ask(), None)
    assert study.best is None
    study.tell(study.ask(), 5.0)
    assert {study.ask() for _ in range(10)} <= set(points)


def searches(trials: int | None = None, seconds: float | None = None, **options: object) -> Searches:
    budget = SearchBudget(
        sampler="random" if options.get("sampler") is None else "tpe",
        trials=trials,
        seconds=seconds,
        ahead=8,
        seed=0,
    )
    clock = options.get("clock")
    return Searches(budget) if clock is None else Searches(budget, clock)  # type: ignore[arg-type]


def measure(found: Searches, waiting: Sequence[Point] = ()) -> list[Point]:
    """Hand out points one after the other until there is none."""
    measured: list[Point] = []
    now = found.refill(waiting)
    while now:
        first, *rest = now
        measured.append(first)
        found.tell(first, us(first))
        now = found.refill(rest)
    return measured


def test_trials_that_are_known_count_and_are_not_asked_for_again() -> None:
    points = grid()
    first = searches(trials=20)
    first.add(points, False, {})
    assert first.left == 20
    whole = measure(first)
    assert len(whole) == len(set(whole)) == 20

    again = searches(trials=20)
    again.add(points, False, {one: us(one) for one in whole[:12]})
    assert again.left == 8
    assert measure(again) == whole[12:], "what an interrupted search would have asked for"
    assert (again.known, again.measured) == (12, 8)
    last = searches(trials=20)
    assert last.add(points, False, {one: us(one) for one in whole[:19]})
    assert measure(last) == whole[19:]
    done = searches(trials=20)
    assert not done.add(points, False, dict.fromkeys(whole))
    assert not done.is_going_on and measure(done) == []


class Clock:
    """Tells the time that it is told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def by_time(found: Searches, clock: Clock, takes: dict[str, float]) -> list[str]:
    """The providers that are measured, where each point takes the time that its provider does."""
    found.start()
    measured = []
    now = found.refill([])
    while now:
        first, *rest = now
        clock.now += takes[first.provider]
        measured.append(first.provider)
        found.tell(first, us(first))
        now = found.refill(rest)
    return measured


def test_seconds_are_shared_evenly_and_what_is_left_over_is_given_to_the_others() -> None:
    clock = Clock()
    found = searches(seconds=30.0, clock=clock)
    for size in (1, 2, 3):
        found.add(grid("tiled", size), False, {})
    assert found.left is None and found.is_going_on
    measured = by_time(found, clock, {"tiled": 1.0})
    assert len(measured) == 30 and clock.now == 30.0
    assert found.best(grid("tiled", 3)[0]) is not None

    clock = Clock()
    found = searches(seconds=30.0, clock=clock)
    found.add(grid("short")[:4], False, {})
    found.add(grid("long"), False, {})
    measured = by_time(found, clock, {"short": 1.0, "long": 2.0})
    assert (measured.count("short"), measured.count("long")) == (4, 13)


def test_trials_and_seconds_end_a_search_whichever_comes_first() -> None:
    for trials, count in ((4, 4), (100, 10)):
        clock = Clock()
        found = searches(trials=trials, seconds=10.0, clock=clock)
        found.add(grid(), False, {})
        assert len(by_time(found, clock, {"tiled": 1.0})) == count


def test_tpe_begins_with_what_was_fastest_at_the_problem_before() -> None:
    found = searches(trials=24, sampler="tpe")
    for size in (1, 2):
        found.add(grid(size=size), False, {})
    measured = measure(found)
    first, second = ([one for one in measured if one.problem["n"] == size] for size in (1, 2))
    fastest = sorted(first, key=us)[:3]
    assert {one.parameters for one in second[:3]} == {one.parameters for one in fastest}
    assert sorted(map(us, second[:3])) == list(map(us, fastest))
