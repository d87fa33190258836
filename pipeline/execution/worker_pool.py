"""Measure the points of a sweep by workers on one or several devices."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock
from time import monotonic
from typing import Literal

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point

from .controls import Controls, Steadiness, control, steadiness
from .schedule import Schedule

Report = Callable[[Point, Outcome, Device], None]
"""Called with each outcome as it comes, by one thread at a time."""


@dataclass
class DeviceTime:
    """How a device spent a sweep: the seconds in which it measured points, the control point included, and
    the seconds in which it waited for the compilers. In all other seconds the sweep starts or ends, or other
    devices measure the last points."""

    points: int = 0
    measuring_s: float = 0.0
    compiling_s: float = 0.0

    @contextmanager
    def spent(self, name: Literal["measuring_s", "compiling_s"]) -> Iterator[None]:
        """Add the seconds of the context to one of the fields."""
        begin = monotonic()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + monotonic() - begin)

    def add(self, other: DeviceTime) -> None:
        """Add another part of the sweep."""
        self.points += other.points
        self.measuring_s += other.measuring_s
        self.compiling_s += other.compiling_s


class WorkerPool:
    """Measures points by its workers. Each has a thread that only waits for the worker's process.

    The times of points in ``audited`` are audited in any case. ``spent`` has each worker's device time.
    """

    def __init__(
        self,
        where: str,
        workers: Sequence[Supervisor],
        control: Point,
        report: Report,
        audited: Container[Point] = (),
    ) -> None:
        self.where = where
        self.workers = workers
        self.control = control
        self.audited = audited
        self.spent = [DeviceTime() for _ in workers]
        self._report = report
        self._reporting = Lock()
        self._stop = Event()

    def measure(self, schedule: Schedule, total: int) -> Steadiness:
        """Measure all points of the schedule, and between them the control point.

        Returns the findings from the control point. Whatever ``report`` raises ends the measurements and is
        raised here, as is Ctrl-C.
        """
        with ThreadPoolExecutor(self.size) as threads:
            futures = [threads.submit(self._work, index, schedule, total) for index in range(self.size)]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(_succeeded(future) for future in futures):
                    self._stop.set()
                    self.abandon()
            return steadiness([future.result() for future in futures])

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self.workers)

    def abandon(self) -> None:
        """End all workers from another thread."""
        for worker in self.workers:
            worker.abandon()

    def _work(self, index: int, schedule: Schedule, total: int) -> Controls:
        """Measure points by one worker until none is left. Returns the control point's measurements."""
        worker, time = self.workers[index], self.spent[index]
        controls = Controls(total // len(self.workers))
        while not self._stop.is_set():
            with time.spent("compiling_s"):
                point = schedule.next(index)
            if point is None:
                break
            with time.spent("measuring_s"):
                if controls.is_due():
                    controls.add_control(control(worker, self.where, self.control))
                outcome = outcome_of(worker, self.where, point, schedule.failure(point), self.audited)
            if self._stop.is_set():
                break
            time.points += 1
            with self._reporting:
                self._report(point, outcome, worker.device)
            controls.add(point)
        if not self._stop.is_set():
            with time.spent("measuring_s"):
                controls.add_control(control(worker, self.where, self.control))
        return controls


def outcome_of(
    worker: Supervisor, where: str, point: Point, failure: str | None, audited: Container[Point]
) -> Outcome:
    """Measure a point of the kernel that ``where`` names, unless its compiler failed."""
    if failure is not None:
        return Outcome(status="compile_error", error=failure)
    return worker.measure(where, point, point in audited)


def _succeeded(future: Future[Controls]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
