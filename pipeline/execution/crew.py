"""Workers on one or several devices that share the points of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event, Lock

from pipeline.execution.schedule import Schedule
from pipeline.execution.supervisor import Supervisor
from pipeline.machine.device import Device
from pipeline.points.point import Point
from pipeline.store.record import Outcome

Report = Callable[[Point, Outcome, Device], None]
"""Gets each outcome as it comes, from one thread at a time."""


class Crew:
    """Measures points by its workers, a thread each that only waits for its process."""

    def __init__(self, where: str, workers: Sequence[Supervisor], control: Point, report: Report) -> None:
        self.where = where
        self.workers = workers
        self.control = control
        self._report = report
        self._reporting = Lock()
        self._stop = Event()

    def measure(self, schedule: Schedule, total: int) -> float | None:
        """Measure all points of the schedule.

        Returns the noise floor: each worker measures the control point at its start, in the middle and at
        its end, and the floor is the spread of all these medians over their middle one, what devices of one
        model differ by included (None if there are not three). Whatever ``report`` raises ends the measuring
        and is raised here, as is Ctrl-C.
        """
        with ThreadPoolExecutor(len(self.workers)) as threads:
            futures = [
                threads.submit(self._work, index, schedule, total) for index in range(len(self.workers))
            ]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                if not all(_succeeded(future) for future in futures):
                    self._stop.set()
                    for worker in self.workers:
                        worker.abandon()
            controls = sorted(control for future in futures for control in future.result())
        return (controls[-1] - controls[0]) / controls[len(controls) // 2] if len(controls) >= 3 else None

    def _work(self, index: int, schedule: Schedule, total: int) -> list[float]:
        """The medians of the control point."""
        worker = self.workers[index]
        controls: list[float] = []
        done = 0
        while not self._stop.is_set() and (point := schedule.next(index)) is not None:
            if done == 0 or done == total // (2 * len(self.workers)):
                self._control(worker, controls)
            outcome = worker.measure(self.where, point)
            if self._stop.is_set():
                break
            with self._reporting:
                self._report(point, outcome, worker.device)
            done += 1
        if not self._stop.is_set():
            self._control(worker, controls)
        return controls

    def _control(self, worker: Supervisor, controls: list[float]) -> None:
        outcome = worker.measure(self.where, self.control)
        if outcome.timing is not None:
            controls.append(outcome.timing.median_us)


def _succeeded(future: Future[list[float]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
