"""Workers on one or several devices that share the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from pipeline.execution.controls import Controls, Steadiness, control, steadiness
from pipeline.execution.schedule import Schedule
from pipeline.execution.supervisor import Supervisor

Report = Callable[[Point, Outcome, Device], None]
"""Gets each outcome as it comes, from one thread at a time."""


class WorkerPool:
    """Measures points by its workers, a thread each that only waits for its process. The times of those that
    are ``audited`` are audited in any case."""

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

        Returns what the control point says. Whatever ``report`` raises ends the measuring and is raised here,
        as is Ctrl-C.
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
        """How many measure at once."""
        return len(self.workers)

    def abandon(self) -> None:
        """End what all of them do, from another thread."""
        for worker in self.workers:
            worker.abandon()

    def _work(self, index: int, schedule: Schedule, total: int) -> Controls:
        """The control point's measurements."""
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
