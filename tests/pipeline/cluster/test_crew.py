"""Stations that share points, with stations that are lost where a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

import kernels
from pipeline import UserError
from pipeline.cluster.crew import GIVEN_UP, StationCrew
from pipeline.cluster.gathering import Member
from pipeline.cluster.team import ClusterTeam
from pipeline.execution.schedule import Schedule
from pipeline.machine.device import Device
from pipeline.points.point import Point
from pipeline.store.record import Outcome
from tests import factory
from tests.pipeline.cluster.planted import Planted, described, member

POINTS = [factory.made_point("softmax", "torch", 64 * size) for size in range(1, 41)]
CONTROL = factory.made_point("softmax", "torch", 99)


class Sweep:
    """What came of points that members share."""

    def __init__(self, members: Sequence[Member], points: Sequence[Point] = POINTS) -> None:
        self.said: list[str] = []
        self.found: list[tuple[Point, Outcome, str]] = []
        self.team = ClusterTeam(members, None, self.said.append)

        def report(point: Point, outcome: Outcome, where: Device) -> None:
            self.found.append((point, outcome, str(where)))

        self.crew: StationCrew = self.team.crew(kernels.load("softmax"), CONTROL, report)
        self.schedule = Schedule(points, {}, workers=self.crew.size)

    def measured(self) -> Sweep:
        self.crew.measure(self.schedule, len(POINTS))
        return self


def once_all(sweep: Sweep, points: Sequence[Point] = POINTS) -> bool:
    return Counter(point for point, _, _ in sweep.found) == Counter(points)


def lost_after(count: int) -> Callable[[Point], bool]:
    """Lost at the next point after so many."""
    left = iter([True] * count)
    return lambda point: next(left, False)


def test_each_point_is_measured_once_by_all_that_there_are() -> None:
    stations = [Planted(described()) for _ in range(3)]
    sweep = Sweep([member(number, one) for number, one in enumerate(stations, start=1)]).measured()
    assert once_all(sweep)
    assert sum(len(one.measured) for one in stations) == len(POINTS)
    assert sweep.said == []


def test_what_a_lost_station_had_is_measured_once_by_others() -> None:
    first, second = Planted(described(), lost_after(3)), Planted(described())
    sweep = Sweep([member(1, first), member(2, second)]).measured()
    assert once_all(sweep)
    assert len(first.measured) <= 3 and set(first.measured).isdisjoint(second.measured)
    if len(first.measured) == 3:
        assert sweep.said == ["node1/cuda:0 on host1 was lost; its points are measured elsewhere."]


def test_a_single_station_that_is_lost_is_started_again() -> None:
    again = Planted(described())
    sweep = Sweep([member(1, Planted(described(), lost_after(3)), lambda: again)]).measured()
    assert once_all(sweep) and len(again.measured) == len(POINTS) - 3


def test_one_on_a_host_that_has_changed_is_not_started_again() -> None:
    other = Planted(described(factory.environment().model_copy(update={"driver": "1.0"})))
    sweep = Sweep([member(1, Planted(described(), lost_after(3)), lambda: other)])
    with pytest.raises(UserError, match="every device of the cluster was lost, and 37 points are left"):
        sweep.measured()
    assert other.is_ended and len(sweep.found) == 3


@pytest.mark.parametrize("at_once", [1, 5])
def test_a_point_that_ends_its_stations_is_found_out_and_the_others_are_measured(at_once: int) -> None:
    """Though each station has several points."""
    bad = POINTS[17]

    def made() -> Planted:
        return Planted(described(), lambda point: point != bad, at_once=at_once)

    first = made()
    sweep = Sweep([member(1, first, made), member(2, made(), made)]).measured()
    assert once_all(sweep)
    failed = [(point, outcome.error) for point, outcome, _ in sweep.found if outcome.status != "ok"]
    assert failed == [(bad, GIVEN_UP)]
    assert max(first.held) == len(POINTS) / 4, "half of its share"


def test_what_a_station_measured_since_it_was_asked_comes_in_one_answer() -> None:
    stations = [Planted(described(), at_once=7) for _ in range(3)]
    sweep = Sweep([member(number, one) for number, one in enumerate(stations, start=1)]).measured()
    assert once_all(sweep)
    asked = [count for one in stations for count in one.held]
    assert len(asked) < len(POINTS)


def test_no_other_point_is_there_beside_one_that_the_worker_compiles() -> None:
    """They would wait for it, while other stations have nothing to do."""
    compiled = [factory.made_point("softmax", "torch_compile", 64 * size) for size in range(1, 9)]
    both = [point for pair in zip(POINTS[:8], compiled, strict=True) for point in pair]
    station = Planted(described(), at_once=8)
    beside: list[int] = []

    def seen(point: Point) -> bool:
        if point.provider == "torch_compile":
            beside.append(len(station.points))
        return True

    station.survives = seen
    assert once_all(Sweep([member(1, station)], both).measured(), both)
    assert beside == [0] * len(compiled)


def test_a_stopped_team_raises_what_ctrl_c_raises() -> None:
    station = Planted(described())
    sweep = Sweep([member(1, station)])

    def stop(point: Point) -> bool:
        sweep.team.stop()
        return False

    station.survives = stop
    with pytest.raises(KeyboardInterrupt):
        sweep.measured()
    assert (sweep.found, sweep.said) == ([], []), "it is not taken for lost"


def test_an_error_of_who_keeps_the_rows_ends_all() -> None:
    stations = [Planted(described()) for _ in range(3)]
    sweep = Sweep([member(number, one) for number, one in enumerate(stations, start=1)])

    def full(point: Point, outcome: Outcome, where: Device) -> None:
        raise UserError("the disk is full")

    sweep.crew = sweep.team.crew(kernels.load("softmax"), CONTROL, full)
    with pytest.raises(UserError, match="the disk is full"):
        sweep.measured()
    assert all(one.is_ended for one in stations)


def test_what_is_not_built_on_one_host_alone_leaves_that_host_out() -> None:
    class Full(Planted):
        def build(self, where: str, providers: list[str]) -> dict[str, str]:
            return {"cuda": "no space is left", "cpp": "a mistake in it"}

    class Sound(Planted):
        def build(self, where: str, providers: list[str]) -> dict[str, str]:
            return {"cpp": "a mistake in it"}

    full, sound = Full(described()), Sound(described())
    sweep = Sweep([member(1, full), member(2, sound)])
    broken = sweep.team.build(kernels.load("softmax"), ["cuda", "cpp"])
    assert broken == {"cpp": "a mistake in it"}
    assert (full.is_ended, sound.is_ended) == (True, False)
    assert sweep.said == ["node1/cuda:0 on host1 is not used: cuda is not built: no space is left"]
