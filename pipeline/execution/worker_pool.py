"""Measure the points of a sweep by workers on one or several devices."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point

from .controls import Controls, Steadiness, control, steadiness
from .schedule import Schedule

Report = Callable[[Point, Outcome, Device], None]
"""Called with each outcome as it comes, by one thread at a time."""


class WorkerPool:
    """Measures points by its workers. Each has a thread that only waits for the worker's process.

    The times of points in ``audited`` are audited in any case.
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
        worker = self.workers[index]
        controls = Controls(total // len(self.workers))
        while not self._stop.is_set() and (point := schedule.next(index)) is not None:
            if controls.is_due():
                controls.add_control(control(worker, self.where, self.control))
            why = schedule.failure(point)
            if why is None:
                outcome = worker.measure(self.where, point, point in self.audited)
            else:
                outcome = Outcome(status="compile_error", error=why)
            if self._stop.is_set():
                break
            with self._reporting:
                self._report(point, outcome, worker.device)
            controls.add(point)
        if not self._stop.is_set():
            controls.add_control(control(worker, self.where, self.control))
        return controls


def _succeeded(future: Future[Controls]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
