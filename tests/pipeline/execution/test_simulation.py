"""Many devices that sleep, a driver that does not: what the simulation counts, and what hands out points."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from pipeline.execution.schedule import Schedule
from pipeline.execution.simulation import Simulated, SimulatedTeam, simulate
from pipeline.machine.device import Device
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.store.record import Outcome

FAILED = Outcome(status="timeout", error="planted")


def point(provider: str, size: int) -> Point:
    return Point(kernel="planted", provider=provider, problem=Values({"n": size}))


def devices(count: int) -> list[Device]:
    return [Device(kind="cuda", name="planted", index=index) for index in range(count)]


class Ticks:
    """A driver that takes the same time for each answer: the clock moves on with every second look."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.looks = itertools.count(1)

    def __call__(self) -> float:
        return (next(self.looks) // 2) * self.step


def simulated(points: Sequence[Point], count: int, step: float) -> tuple[Simulated, list[tuple[Point, str]]]:
    kept: list[tuple[Point, str]] = []
    team = SimulatedTeam(
        Schedule(points, {}, workers=count),
        devices(count),
        lambda point: FAILED,
        lambda point, outcome, device: kept.append((point, str(device))),
    )
    return simulate([team], lambda point: 1.0, Ticks(step)), kept


def test_each_point_is_kept_once_and_the_devices_share_them() -> None:
    points = [point(provider, size) for size in range(10) for provider in "abcd"]
    found, kept = simulated(points, 4, 0.0)
    assert sorted(str(one) for one, _ in kept) == sorted(map(str, points))
    assert {name for _, name in kept} == {f"cuda:{index}" for index in range(4)}
    assert (found.rows, found.devices) == (40, 4)


def test_devices_are_idle_while_they_wait_for_the_driver() -> None:
    points = [point("a", size) for size in range(100)]
    quick, _ = simulated(points, 10, 0.0)
    assert quick.idle == pytest.approx(0.0)
    assert (quick.end_s, quick.busy_s) == pytest.approx((10.0, 100.0))
    slow, _ = simulated(points, 10, 0.2)
    # Ten devices want five answers a second each: the driver gives five in all.
    assert slow.waiting > 0.95
    assert slow.idle > 0.4
    assert slow.row_s == pytest.approx(0.2 * 110 / 100), "asking for a last time is the driver's work too"


def test_a_schedule_over_many_points_hands_out_what_one_that_looks_at_all_would() -> None:
    """The rule as it is written: of what is ready the provider that is there, then those of nobody else."""
    for seed, workers in itertools.product(range(6), (1, 3, 8)):
        dice = random.Random(seed)
        points = [point(provider, size) for size in range(12) for provider in "abcde"]
        if seed % 2:
            dice.shuffle(points)
        schedule = Schedule(points, {}, workers=workers)
        waiting, last = list(points), [None] * workers
        for turn in range(len(points)):
            worker = dice.randrange(workers)
            others = {one for number, one in enumerate(last) if number != worker}
            expected = min(waiting, key=lambda one: (one.provider != last[worker], one.provider in others))
            assert schedule.next(worker) == expected, f"{workers} workers, seed {seed}, turn {turn}"
            waiting.remove(expected)
            last[worker] = expected.provider  # type: ignore[call-overload]
        assert schedule.next(0) is None
