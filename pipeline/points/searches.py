"""The searches of a sweep: a study for each provider at each problem, and the budget that ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from kernel_pipeline.records.point import Point

from .search import Sampler, Study

OF_THE_LAST = 3
"""The maximum number of configurations with which a ``tpe`` search begins: the fastest of the previous
problem."""

SHARE = 4
"""The number of a search's trials, divided by this, limits both the number of such configurations and the
number of trials that are chosen before the device needs them."""


@dataclass(frozen=True)
class SearchBudget:
    """The way studies choose, and their end: after ``trials`` of each, including known trials in the ledger,
    or after ``seconds`` of all together.

    ``ahead`` is the number of points chosen before the device needs them, if the provider is compiled ahead;
    for other providers it is one.
    """

    sampler: Sampler
    trials: int | None
    seconds: float | None
    ahead: int
    seed: int

    @property
    def fewest(self) -> int:
        """The minimum number of points that are worth a study; fewer are all measured."""
        return 2 if self.trials is None else self.trials + 1


@dataclass(eq=False)
class _Search:
    """A study and its state. ``is_ahead`` says whether its provider is compiled ahead, ``took`` is in
    seconds."""

    study: Study
    is_ahead: bool
    trials: int
    took: float = 0.0
    is_over: bool = False

    @property
    def left(self) -> int:
        """The number of points that may still be chosen."""
        return max(0, self.trials - self.study.tried)


class Searches:
    """The studies of a sweep, in order. Several threads take points from them."""

    def __init__(self, budget: SearchBudget, clock: Callable[[], float] = monotonic) -> None:
        self.budget = budget
        self.known = 0
        self.measured = 0
        self._clock = clock
        self._searches: list[_Search] = []
        self._of: dict[Point, _Search] = {}
        self._told_at: float | None = None
        self._lock = Lock()

    def add(
        self,
        points: Sequence[Point],
        is_ahead: bool,
        known: Mapping[Point, float | None],
        again: Sequence[Point] = (),
        trials: int | None = None,
    ) -> bool:
        """Add a study of these points. Return whether it has points left.

        ``is_ahead`` says whether its provider is compiled ahead. ``known`` has the times of points measured
        before, None for a failure. Points in ``again`` were tried before, and the caller hands them out.
        ``trials`` replaces the budget's number for this study.
        """
        study = Study(points, self.budget.sampler, self.budget.seed)
        for point, us in known.items():
            study.know(point, us)
        for point in again:
            study.begin(point)
        self.known += len(known)
        search = _Search(study, is_ahead, min(trials or self.budget.trials or study.size, study.size))
        self._searches.append(search)
        self._of |= dict.fromkeys(points, search)
        return search.left > 0

    def __len__(self) -> int:
        return len(self._searches)

    @property
    def size(self) -> int:
        """The number of points that the studies choose from."""
        return len(self._of)

    @property
    def left(self) -> int | None:
        """The number of points that will be chosen; None if only time limits the studies."""
        if self.budget.trials is None:
            return None
        return sum(search.left for search in self._searches)

    @property
    def is_going_on(self) -> bool:
        """Whether a study has a point left to ask for."""
        return any(search.left for search in self._searches)

    def start(self) -> None:
        """Note that the device begins to measure."""
        self._told_at = self._clock()

    def refill(self, waiting: Sequence[Point]) -> list[Point]:
        """Return the points that are to wait for the device: points that wait already, without studies whose
        time is up, and new points."""
        with self._lock:
            self._end_by_time()
            kept = [point for point in waiting if point not in self._of or not self._of[point].is_over]
            for is_ahead in (True, False):
                waits = sum(point in self._of and self._of[point].is_ahead is is_ahead for point in kept)
                kept += self._ask(is_ahead, waits)
            return kept

    def tell(self, point: Point, us: float | None) -> None:
        """Note the time of a point, None for a failure. Its study is charged with the time since the last
        call, even if that call's point belongs to no study."""
        with self._lock:
            now = self._clock()
            if (search := self._of.get(point)) is not None:
                self.measured += 1
                search.took += 0.0 if self._told_at is None else now - self._told_at
                search.study.tell(point, us)
            self._told_at = now

    def best(self, point: Point) -> tuple[Point, float] | None:
        """Return the fastest point so far of a point's study, with its time in microseconds."""
        search = self._of.get(point)
        return None if search is None else search.study.best

    def _ask(self, is_ahead: bool, waits: int) -> list[Point]:
        """Ask the first studies that have points left for new points, beside the waiting points."""
        found: list[Point] = []
        for search in self._searches:
            if search.is_ahead is not is_ahead or search.is_over or not search.left:
                continue
            # The later a point is chosen, the more times are known for the choice.
            most = min(self.budget.ahead, max(1, search.trials // SHARE)) if is_ahead else 1
            count = min(most - waits - len(found), search.left)
            if count <= 0:
                break
            if search.study.tried == 0 and self.budget.sampler == "tpe":
                self._prefer(search)
            found += [search.study.ask() for _ in range(count)]
        return found

    def _prefer(self, search: _Search) -> None:
        """Let a study begin with the fastest configurations of the provider's previous problem."""
        for other in self._searches[: self._searches.index(search)][::-1]:
            if other.study.provider == search.study.provider and other.study.best is not None:
                count = min(OF_THE_LAST, search.trials // SHARE)
                search.study.prefer(point.parameters for point in other.study.fastest(count))
                return

    def _end_by_time(self) -> None:
        """End each study that used up its share: the remaining studies share the remaining time evenly."""
        if self.budget.seconds is None:
            return
        going_on = [one for one in self._searches if not one.is_over and one.left]
        left = self.budget.seconds - sum(one.took for one in self._searches if one not in going_on)
        for search in going_on:
            search.is_over = search.took >= left / len(going_on)
