"""What a control point's times say of the points between them, with times that were planted."""

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from threading import Timer
from time import sleep
from typing import Any, cast

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.machine.load import Stolen
from kernel_pipeline.records.measurement import Outcome, State
from kernel_pipeline.records.point import Point
from pipeline.execution import controls
from pipeline.execution.controls import STOLEN, UNSTEADY, Control, Controls, Steadiness, steadiness
from pipeline.execution.schedule import Schedule
from pipeline.execution.worker_pool import WorkerPool
from tests import factory

POINTS = [factory.made_point("softmax", "torch", size) for size in range(1, 17)]
CONTROL = factory.made_point("softmax", "torch", 99)


class Planted:
    """A worker whose control point takes these times in turn, None for one that fails."""

    def __init__(self, times: list[float | None], where: device.Device | None = None) -> None:
        self.device = where or device.cpu()
        self.times = iter(times)
        self.asked: list[Point] = []
        self.audited: list[Point] = []

    def measure(self, where: str, point: Point, is_audited: bool = False) -> Outcome:
        self.asked.append(point)
        self.audited += [point] * is_audited
        us = next(self.times) if point == CONTROL else 7.0
        if us is None:
            return Outcome(status="timeout", error="no answer")
        return Outcome(status="ok", max_abs_err=0.0, timing=factory.timing(us), state=State())

    def keep(self, where: str, point: Point) -> None: ...

    def abandon(self) -> None: ...


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else is there, whatever this machine does."""
    monkeypatch.setattr(controls.load, "stolen", Stolen)


def swept(*workers: Planted, points: list[Point] = POINTS) -> Steadiness:
    pool = WorkerPool("softmax", cast(Any, workers), CONTROL, lambda *outcome: None)
    return pool.measure(Schedule(points, {}, workers=len(workers)), len(points))


def test_control_points_are_spread_over_a_sweep_and_mark_what_lies_beside_a_slow_one() -> None:
    worker = Planted([10.0, 10.1, 10.2, 10.0, 15.1, 10.1, 10.0, 10.3, 10.2])
    found = swept(worker)
    places = [place for place, point in enumerate(worker.asked) if point == CONTROL]
    assert places == [0, 3, 6, 9, 12, 15, 18, 21, 24], "before every second point, and at the end"
    assert found.doubts == dict.fromkeys(POINTS[6:10], UNSTEADY)
    assert found.noise_floor == pytest.approx((15.1 - 10.0) / 10.1)
    assert found.neighbours == {}


def test_a_steady_device_leaves_no_doubt_nor_does_a_control_point_that_fails() -> None:
    assert swept(Planted([10.0, 11.0, 12.0, 10.0, 13.0, 10.0, 10.0, 14.9, 10.0])).doubts == {}
    failed = swept(Planted([10.0, None, 12.0, *[None] * 6]))
    assert (failed.doubts, failed.noise_floor) == ({}, None)
    few = swept(Planted([10.0, 10.0]), points=POINTS[:1])
    assert (few.doubts, few.noise_floor) == ({}, None)


def test_what_does_not_compile_is_no_work_for_a_worker() -> None:
    broken: Future[None] = Future()
    broken.set_exception(UserError("cuda.cu does not compile"))
    worker, told = Planted([10.0] * 3), {}
    pool = WorkerPool(
        "softmax", cast(Any, [worker]), CONTROL, lambda point, outcome, _: told.update({point: outcome})
    )
    pool.measure(Schedule(POINTS[:2], {POINTS[0]: broken}), 2)
    assert (told[POINTS[0]].status, told[POINTS[0]].error) == ("compile_error", "cuda.cu does not compile")
    assert told[POINTS[1]].status == "ok" and POINTS[0] not in worker.asked


def test_the_seconds_of_a_device_are_those_of_measuring_and_of_waiting_for_compilers() -> None:
    class Slow(Planted):
        def measure(self, where: str, point: Point, is_audited: bool = False) -> Outcome:
            sleep(0.02)
            return super().measure(where, point, is_audited)

    late: Future[None] = Future()
    pool = WorkerPool("softmax", cast(Any, [Slow([10.0] * 3)]), CONTROL, lambda *outcome: None)
    timer = Timer(0.3, late.set_result, [None])
    timer.start()
    pool.measure(Schedule(POINTS[:2], {POINTS[1]: late}), 2)
    (spent,) = pool.spent
    assert spent.points == 2
    # Two points and the control point at both ends, and the rest of the 0.3 s after the first point.
    assert spent.measuring_s >= 0.08 and 0.1 <= spent.compiling_s < 0.3


def test_a_worker_is_told_which_times_are_audited_in_any_case() -> None:
    worker, audited = Planted([10.0] * 9), frozenset(POINTS[2:4])
    pool = WorkerPool("softmax", cast(Any, [worker]), CONTROL, lambda *outcome: None, audited)
    pool.measure(Schedule(POINTS, {}), len(POINTS))
    assert set(worker.audited) == audited


def test_each_device_is_compared_with_itself() -> None:
    """One that is half as fast is as steady."""
    found = swept(Planted([10.0] * 9), Planted([20.0] * 9))
    assert found.doubts == {}
    assert found.noise_floor is not None and found.noise_floor >= 0.5


ONCE = Control(10.0, Stolen(), 0)


def between(*taken: Control) -> Controls:
    """A point between each two control points."""
    made = Controls(1)
    made.add_control(taken[0])
    for point, control in zip(POINTS, taken[1:], strict=False):
        made.add(point)
        made.add_control(control)
    return made


def taken(monkeypatch: pytest.MonkeyPatch, name: str, values: list[object], where: device.Device) -> Controls:
    """Three control points with a point between each two, and what is seen of others at each."""
    seen: Iterator[object] = iter(values)
    place = controls.load if name == "stolen" else controls
    monkeypatch.setattr(place, name, lambda *given, **named: next(seen))
    worker = Planted([10.0] * 3, where)
    take = partial(controls.control, cast(Supervisor, worker), "softmax", CONTROL)
    return between(take(), take(), take())


def test_cores_that_a_host_gave_to_others_mark_what_was_measured_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[object] = [Stolen(100, 1000), Stolen(101, 1010), Stolen(121, 1110)]
    found = steadiness([taken(monkeypatch, "stolen", looks, device.cpu())])
    assert found.doubts == {POINTS[1]: STOLEN}, "a tick alone is none"


def test_other_processes_on_a_gpu_are_said_and_doubt_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = device.Device(kind="cuda", name="GPU", index=0, uuid="GPU-planted")
    found = steadiness([taken(monkeypatch, "neighbours", [0, 0, 2], gpu)])
    assert (found.doubts, found.neighbours) == ({}, {POINTS[1]: 2})


@pytest.mark.parametrize(("points", "step"), [(2, 2), (16, 2), (33, 5), (100, 13)])
def test_a_sweep_of_any_length_has_eight_intervals_at_most(points: int, step: int) -> None:
    done: list[int] = []
    made = Controls(points)
    for count in range(points):
        if made.is_due():
            made.add_control(ONCE)
            done.append(count)
        made.add(POINTS[0])
    assert done == list(range(0, points, step))


def test_points_that_come_at_once_have_one_control_point_before_the_next() -> None:
    made = Controls(100)
    due = []
    for count in (0, 40, 11, 1, 8, 5):
        for _ in range(count):
            made.add(POINTS[0])
        due.append(made.is_due())
        if due[-1]:
            made.add_control(ONCE)
    assert due == [True, True, False, True, False, True], "at 0, then at the first look behind 13, 52 and 65"


def beside(*taken: Control) -> Steadiness:
    """What control points say with a point between each two."""
    return steadiness([between(*taken)])


@pytest.mark.parametrize(("us", "is_doubted"), [(15.0, False), (15.01, True)])
def test_half_as_long_again_is_the_limit(us: float, is_doubted: bool) -> None:
    found = beside(Control(10.0, Stolen(), 0), Control(us, Stolen(), 0))
    assert (POINTS[0] in found.doubts) is is_doubted


@pytest.mark.parametrize(
    ("ticks", "of", "is_doubted"),
    [(3, 59, True), (3, 60, False), (2, 10, False), (4, 1000, False)],
    ids=["more than 5 %", "5 %", "two ticks", "less"],
)
def test_three_ticks_and_a_twentieth_of_the_cores_are_the_limit(
    ticks: int, of: int, is_doubted: bool
) -> None:
    found = beside(Control(10.0, Stolen(), 0), Control(10.0, Stolen(ticks, of), 0))
    assert found.doubts == (dict.fromkeys(POINTS[:1], STOLEN) if is_doubted else {})


def test_a_control_point_that_failed_is_no_time() -> None:
    short = beside(Control(None, Stolen(), 0), Control(0.5, Stolen(), 0), Control(None, Stolen(), 0))
    assert short.doubts == {}
    assert beside(Control(None, Stolen(), 0), Control(None, Stolen(), 0)).doubts == {}


def test_three_times_make_a_noise_floor_and_two_none() -> None:
    times = [Control(us, Stolen(), 0) for us in (10.0, 13.0, 11.0)]
    assert beside(*times).noise_floor == pytest.approx(3.0 / 11.0)
    assert beside(*times[:2]).noise_floor is None
    more = [Control(us, Stolen(), 0) for us in (15.0, 10.0, 14.0, 11.0, 12.0)]
    assert beside(*more).noise_floor == pytest.approx(5.0 / 12.0), "over the middle one"


def test_who_else_computes_is_asked_of_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def strangers(listed: object, own: object, measuring: bool) -> frozenset[int]:
        asked.append(measuring)
        return frozenset({7, 8})

    monkeypatch.setattr(controls.load, "on_gpu", lambda uuid: frozenset())
    monkeypatch.setattr(controls.load, "strangers", strangers)
    gpu = device.Device(kind="cuda", name="GPU", index=0, uuid="GPU-planted")
    worker = Planted([10.0, None], gpu)
    looks = [controls.control(cast(Supervisor, worker), "softmax", CONTROL) for _ in range(2)]
    assert [one.neighbours for one in looks] == [2, 2]
    assert asked == [True, False], "ours is among those that compute where it had a time"
    assert controls.neighbours(device.cpu(), measuring=True) == 0 and len(asked) == 2


def test_rows_are_told_what_the_sweep_has_shown() -> None:
    one, other, failed = (
        factory.measurement(size=64),
        factory.measurement(size=128, valid=False),
        factory.measurement(size=256, status="timeout"),
    )
    found = Steadiness(0.2, dict.fromkeys((one.point, other.point), "it was busy"), {one.point: 3})
    state, known = found.settled(one, {}).outcome.state, found.settled(other, {}).outcome.state
    assert state is not None and known is not None
    assert (state.valid, state.invalid_reason) == (False, "it was busy")
    assert (state.noise_floor, state.neighbours) == (0.2, 3)
    assert known.invalid_reason == "the clock moved by 8 % while it was timed", "what was known first stays"
    assert found.settled(failed, {}) == failed
