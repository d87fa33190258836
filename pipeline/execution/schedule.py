"""Choose the next point: a compiled point, if possible of the provider whose worker is running."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import ceil
from threading import Condition

from kernel_pipeline.execution.compile_pool import Ahead
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

from ..points.searches import SearchBudget, Searches
from ..store import retry
from ..store.retry import Retry

Refill = Callable[[Sequence[Point]], Sequence[Point]]
"""Takes the points that wait, and returns the points that are to wait in their place."""


COMPILING_WEIGHT = 35
"""The factor by which a point takes longer if the worker compiles it. A softmax on an H200 takes about 0.9 s
with torch.compile, and 26 ms otherwise."""

SHARE = 2
"""A worker takes an equal share of the remaining points, divided by this number, so that no device gets the
last points alone."""


class Schedule:
    """Hand out points to one or several workers, each point once.

    Args:
        points: the points in their default order.
        compiling: the futures of points that are compiled ahead. Such a point is handed out when its future
            is done, also after a failed compilation.
        compiles_itself: whether a point is compiled by the worker that measures it. This takes long, and with
            torch.compile seconds more the first time. So as few workers as possible take all such points,
            before others.
        workers: the number of workers; they are numbered from 0.
        refill: called before each point that is handed out. It may drop waiting points and add others, also
            to ``compiling``. None if all points are known.
    """

    def __init__(
        self,
        points: Sequence[Point],
        compiling: Mapping[Point, Future[None]],
        compiles_itself: Callable[[Point], bool] = lambda point: False,
        workers: int = 1,
        refill: Refill | None = None,
    ) -> None:
        self._compiling = compiling
        self._compiles_itself = compiles_itself
        self._several = workers > 1
        self._last: list[str | None] = [None] * workers
        self._on_devices: Counter[str] = Counter()
        self._compilers: set[int] = set()
        self._most_compilers = _compilers(sum(map(compiles_itself, points)), len(points), workers)
        self._refill = refill
        self._places = count()
        self._waiting: dict[int, Point] = {}
        self._pending: dict[int, Future[None]] = {}
        self._pending_of: Counter[str] = Counter()
        # The places of points that can be measured, by provider: each a heap.
        self._ready: defaultdict[str, list[int]] = defaultdict(list)
        self._changed = Condition()
        with self._changed:
            for point in points:
                self._add(point)

    def next(self, worker: int) -> Point | None:
        """Return the next point for a worker, or None if no point is left for it.

        Points of the worker's last provider come first, since another provider needs another process.
        Providers that no other worker has come second, providers with all points compiled before others. All
        other providers come last. Waits for a compiler only when nothing else is left to measure.
        """
        with self._changed:
            while True:
                self._refresh()
                place = self._first_for(worker)
                if place is not None:
                    return self._hand_out(place, worker)
                if not self._pending:
                    return None
                self._changed.wait()

    def take(self, worker: int, most: int) -> list[Point]:
        """Return at most this many next points for a worker: fewer near the end, so that all workers end at
        the same time. A point that the worker compiles itself takes long, so it is the last."""
        points: list[Point] = []
        fewer = ceil(self.waiting / (SHARE * len(self._last)))
        while len(points) < min(most, fewer) and (point := self.next(worker)) is not None:
            points.append(point)
            if self._compiles_itself(point):
                break
        return points

    def _first_for(self, worker: int) -> int | None:
        """Return the place of the ready point that the worker gets next; None if there is none."""
        firsts = {
            provider: place for provider in self._ready if (place := self._first_of(provider)) is not None
        }
        if self._several:
            compiled = {
                name: place for name, place in firsts.items() if self._compiles_itself(self._waiting[place])
            }
            others = {name: place for name, place in firsts.items() if name not in compiled}
            may_compile = worker in self._compilers or len(self._compilers) < self._most_compilers
            firsts = compiled if may_compile and compiled else others
        last = self._last[worker]
        if last in firsts:
            return firsts[last]

        def order(provider: str) -> tuple[bool, bool, int]:
            is_taken = provider in self._on_devices
            return is_taken, not is_taken and self._pending_of[provider] > 0, firsts[provider]

        first = min(firsts, key=order, default=None)
        return None if first is None else firsts[first]

    def _first_of(self, provider: str) -> int | None:
        """Return the place of a provider's first ready point, and drop places of points that do not wait."""
        places = self._ready[provider]
        while places and places[0] not in self._waiting:
            heappop(places)
        return places[0] if places else None

    def give_back(self, worker: int, points: Sequence[Point]) -> None:
        """Give the points of a worker that is gone to other workers; another may compile in its place."""
        with self._changed:
            for point in points:
                self._add(point)
            self._leave(worker)
            self._compilers.discard(worker)
            self._changed.notify_all()

    def failure(self, point: Point) -> str | None:
        """Return the compiler's error of a point that was handed out; None if there was none."""
        future = self._compiling.get(point)
        error = None if future is None else future.exception()
        return None if error is None else str(error)

    @property
    def waiting(self) -> int:
        """The number of points that no worker has taken yet."""
        with self._changed:
            return len(self._waiting)

    def _hand_out(self, place: int, worker: int) -> Point:
        point = self._waiting[place]
        self._remove(place)
        self._leave(worker)
        self._on_devices[point.provider] += 1
        self._last[worker] = point.provider
        if self._compiles_itself(point):
            self._compilers.add(worker)
        return point

    def _leave(self, worker: int) -> None:
        """Record that the worker's last provider is no longer on its device."""
        before, self._last[worker] = self._last[worker], None
        if before is not None:
            self._on_devices[before] -= 1
            if not self._on_devices[before]:
                del self._on_devices[before]

    def _refresh(self) -> None:
        """Replace the waiting points by the points that the refill returns."""
        if self._refill is None:
            return
        before = list(self._waiting.values())
        now = self._refill(before)
        if len(now) == len(before) and all(map(_is_same, now, before)):
            return
        kept, known = set(now), set(before)
        for place, point in list(self._waiting.items()):
            if point not in kept:
                self._remove(place)
        for point in now:
            if point not in known:
                self._add(point)
        self._changed.notify_all()

    def _add(self, point: Point) -> None:
        place = next(self._places)
        self._waiting[place] = point
        future = self._compiling.get(point)
        if future is None or future.done():
            heappush(self._ready[point.provider], place)
        else:
            self._pending[place] = future
            self._pending_of[point.provider] += 1
            future.add_done_callback(partial(self._compiled, place))

    def _compiled(self, place: int, future: Future[None]) -> None:
        """Make a point ready after its compiler has ended, also if that failed."""
        with self._changed:
            if self._pending.pop(place, None) is None:
                return  # the refill dropped it meanwhile
            point = self._waiting[place]
            self._pending_of[point.provider] -= 1
            heappush(self._ready[point.provider], place)
            self._changed.notify_all()

    def _remove(self, place: int) -> None:
        point = self._waiting.pop(place)
        if self._pending.pop(place, None) is not None:
            self._pending_of[point.provider] -= 1


def _is_same(one: Point, other: Point) -> bool:
    return one is other


def _compilers(compiling: int, points: int, workers: int) -> int:
    """Return the number of workers that have to compile so that compiling workers do not end after the
    others."""
    weight = COMPILING_WEIGHT * compiling
    return max(1, ceil(weight * workers / max(1, points - compiling + weight)))


BY_TIME = 100
"""The assumed number of points of searches that end by time, because their real number is not known."""


class Agenda:
    """The points of a sweep that have to be measured. Searches add further points later.

    ``due`` are the points that are measured whatever the searches find. ``examples`` has a point of each
    provider at each problem that is measured; without a budget it is ``due``.

    Args:
        points: all points that may be measured.
        known: the ledger's rows of these points.
        again: the failures that are measured again.
        budget: the way to search and its limit; None to measure every point.
        ahead: compiles points ahead.

    With a budget each provider at each problem is a search, unless it has fewer configurations than
    ``budget.fewest``: then each is measured.
    """

    def __init__(
        self,
        points: Sequence[Point],
        known: Mapping[Point, Measurement],
        again: Retry,
        budget: SearchBudget | None,
        ahead: Ahead,
    ) -> None:
        self.due: list[Point] = []
        self.searches: Searches | None = None
        self._ahead = ahead

        def is_due(point: Point) -> bool:
            return point not in known or retry.is_due(known[point], again)

        if budget is None:
            self.due = self.examples = list(filter(is_due, points))
            return
        self.searches = Searches(budget)
        self.examples = []
        for group in _alike(points):
            goes_on = False
            again_due = list(filter(is_due, group))
            if len(group) >= budget.fewest:
                tried = [point for point in group if point in known]
                again_due = list(filter(is_due, tried))
                times = {point: objective(known[point]) for point in tried if point not in again_due}
                goes_on = self.searches.add(group, ahead.is_of(group[0]), times, again_due)
            self.due += again_due
            if again_due or goes_on:
                self.examples.append(group[0])

    @property
    def total(self) -> int:
        """The number of points to measure, without the points of searches that end by time."""
        return len(self.due) + (0 if self.searches is None else self.searches.left or 0)

    @property
    def expected(self) -> int:
        """The expected number of points, with an estimate for searches that end by time."""
        is_open = self.searches is not None and self.searches.left is None
        return self.total + BY_TIME * is_open

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to measure."""
        return not (self.due or (self.searches is not None and self.searches.is_going_on))

    def refill(self, waiting: Sequence[Point]) -> Sequence[Point]:
        """Return the points that wait for the device, including points of searches, and begin to compile
        them."""
        found = waiting if self.searches is None else self.searches.refill(waiting)
        self._ahead.submit(found)
        return found

    def start(self) -> None:
        """Begin to count the seconds of the searches, since the device begins to measure."""
        if self.searches is not None:
            self.searches.start()

    def tell(self, row: Measurement) -> tuple[Point, float] | None:
        """Tell a row to its search. Returns the search's fastest point so far, and its time."""
        if self.searches is None:
            return None
        self.searches.tell(row.point, objective(row))
        return self.searches.best(row.point)


def objective(row: Measurement) -> float | None:
    """Return the objective that a search minimizes, the median time; None for a row without a time."""
    return None if row.outcome.timing is None else row.outcome.timing.median_us


def _alike(points: Sequence[Point]) -> list[list[Point]]:
    """Group points by provider and problem, in their order.

    The groups of a provider follow each other, because each provider takes its own process.
    """
    groups: dict[str, dict[object, list[Point]]] = {}
    for point in points:
        groups.setdefault(point.provider, {}).setdefault(point.problem, []).append(point)
    return [group for of_provider in groups.values() for group in of_provider.values()]
