"""Which point is next: one that is compiled, and if possible one whose inputs are already on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Lock

from kernels.point import Point


class Schedule:
    """Hands out points to one or several measuring threads, each point once."""

    def __init__(self, points: Sequence[Point], compiling: Mapping[Point, Future[None]]) -> None:
        self._waiting = list(points)
        self._compiling = compiling
        self._lock = Lock()

    def next(self, last: Point | None) -> Point | None:
        """The next point for a device that measured ``last`` before; None when all are handed out.

        Points that share ``last``'s inputs come first; then those that are compiled, in their order. Waits
        for a compiler only when nothing else is left to measure.
        """
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                ready = [point for point in self._waiting if self._is_ready(point)]
                same = [point for point in ready if last is not None and _inputs(point) == _inputs(last)]
                if ready:
                    chosen = (same or ready)[0]
                    self._waiting.remove(chosen)
                    return chosen
                pending = [self._compiling[point] for point in self._waiting]
            wait(pending, return_when=FIRST_COMPLETED)

    def _is_ready(self, point: Point) -> bool:
        future = self._compiling.get(point)
        return future is None or future.done()


def _inputs(point: Point) -> tuple[int, str]:
    return point.size, point.dtype
