"""Which point is next: one that is compiled, and if possible one whose inputs are already on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from math import ceil
from threading import Lock

from pipeline.points.point import Point

Refill = Callable[[Sequence[Point]], Sequence[Point]]
"""Says which points are to wait in place of those that do."""


def _as_they_are(waiting: Sequence[Point]) -> Sequence[Point]:
    return waiting


COMPILING_WEIGHT = 35
"""How many times longer a point takes that the worker compiles: about 0.9 s with torch.compile against 26 ms
for a softmax on an H200."""


class Schedule:
    """Hands out points to one or several workers, each point once.

    Args:
        points: in the order in which they are measured where nothing else decides.
        compiling: a point that is in here is handed out once its future is done.
        compiles_itself: whether a point is compiled by the worker that measures it. It takes long, and for
            torch.compile seconds more the first time: as few of several workers as can be done by take all
            such points, and take them before others.
        workers: how many there are; they are named by the numbers from 0.
        refill: is called before each point that is handed out. It may leave out points that wait, and add
            others, also to ``compiling``.
    """

    def __init__(
        self,
        points: Sequence[Point],
        compiling: Mapping[Point, Future[None]],
        compiles_itself: Callable[[Point], bool] = lambda point: False,
        workers: int = 1,
        refill: Refill = _as_they_are,
    ) -> None:
        self._waiting = list(points)
        self._compiling = compiling
        self._compiles_itself = compiles_itself
        self._last: list[Point | None] = [None] * workers
        self._compilers: set[int] = set()
        self._most_compilers = _compilers(sum(map(compiles_itself, points)), len(points), workers)
        self._refill = refill
        self._lock = Lock()

    def next(self, worker: int) -> Point | None:
        """The next point for a worker; None when none is left for it.

        Points that share the inputs of its last one come first; then those whose inputs no other worker has;
        then those that are compiled, in their order. Waits for a compiler only when nothing else is left to
        measure.
        """
        while True:
            with self._lock:
                self._waiting = list(self._refill(self._waiting))
                mine = [point for point in self._waiting if self._may_have(worker, point)]
                if not mine:
                    return None
                ready = [point for point in mine if self._is_ready(point)]
                if ready:
                    chosen = min(ready, key=lambda point: self._rank(worker, point))
                    self._waiting.remove(chosen)
                    self._last[worker] = chosen
                    if self._compiles_itself(chosen):
                        self._compilers.add(worker)
                    return chosen
                pending = [self._compiling[point] for point in mine]
            wait(pending, return_when=FIRST_COMPLETED)

    def give_back(self, worker: int, points: Sequence[Point]) -> None:
        """A worker is gone that had these points: others get them, and what it would have compiled."""
        with self._lock:
            self._waiting = [*points, *self._waiting]
            self._last[worker] = None
            self._compilers.discard(worker)

    @property
    def waiting(self) -> int:
        """How many points nobody has yet."""
        with self._lock:
            return len(self._waiting)

    def _may_have(self, worker: int, point: Point) -> bool:
        return (
            worker in self._compilers
            or len(self._compilers) < self._most_compilers
            or not self._compiles_itself(point)
        )

    def _rank(self, worker: int, point: Point) -> tuple[bool, bool, bool]:
        """The lowest is next; of equals the first."""
        last = [other and other.problem for other in self._last]
        others = last[:worker] + last[worker + 1 :]
        return (
            bool(others) and not self._compiles_itself(point),
            point.problem != last[worker],
            point.problem in others,
        )

    def _is_ready(self, point: Point) -> bool:
        future = self._compiling.get(point)
        return future is None or future.done()


def _compilers(compiling: int, points: int, workers: int) -> int:
    """How many workers have to compile so that these are not the last to end."""
    weight = COMPILING_WEIGHT * compiling
    return max(1, ceil(weight * workers / max(1, points - compiling + weight)))
