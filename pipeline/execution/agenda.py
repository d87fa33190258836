"""What a sweep has to measure: points that are known from the start, and searches that ask for more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.execution.compile_pool import Ahead
from pipeline.points.point import Point
from pipeline.points.searches import SearchBudget, Searches
from pipeline.store import retry
from pipeline.store.record import Measurement
from pipeline.store.retry import Retry

BY_TIME = 100
"""So many points are expected of searches that end by time, whose number nobody knows."""


class Agenda:
    """The points of a sweep that have to be measured, as far as they are known.

    ``due`` are measured whatever the others give; ``examples`` are of each provider and problem of which
    anything is measured.

    Args:
        points: all that may be measured.
        known: the rows that the ledger has of them.
        again: which failures are measured again.
        budget: how to search; None for measuring every point.
        ahead: what compiles points ahead.

    With a budget each provider at each problem is a search. Where it has no more configurations than trials,
    each is measured.
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
        """How many points will be measured, without those of searches that end by time."""
        return len(self.due) + (0 if self.searches is None else self.searches.left or 0)

    @property
    def expected(self) -> int:
        """How many points are expected, with those of searches that end by time."""
        is_open = self.searches is not None and self.searches.left is None
        return self.total + BY_TIME * is_open

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to measure."""
        return not (self.due or (self.searches is not None and self.searches.is_going_on))

    def refill(self, waiting: Sequence[Point]) -> Sequence[Point]:
        """The points that wait for the device, with those that searches add; these begin to be compiled."""
        found = waiting if self.searches is None else self.searches.refill(waiting)
        self._ahead.submit(found)
        return found

    def give_up(self, provider: str) -> list[Point]:
        """What searches of a provider that can't be measured would still ask for."""
        return [] if self.searches is None else self.searches.give_up(provider)

    def start(self) -> None:
        """The device begins to measure."""
        if self.searches is not None:
            self.searches.start()

    def tell(self, row: Measurement) -> tuple[Point, float] | None:
        """A point was measured. Returns the fastest point of its search so far, and its time."""
        if self.searches is None:
            return None
        self.searches.tell(row.point, objective(row))
        return self.searches.best(row.point)


def objective(row: Measurement) -> float | None:
    """What a search makes small: the median time; None for a point that has none."""
    return None if row.outcome.timing is None else row.outcome.timing.median_us


def _alike(points: Sequence[Point]) -> list[list[Point]]:
    """The points of each provider at each problem, in their order; those of a provider one after the other,
    for each takes a process of its own."""
    groups: dict[str, dict[object, list[Point]]] = {}
    for point in points:
        groups.setdefault(point.provider, {}).setdefault(point.problem, []).append(point)
    return [group for of_provider in groups.values() for group in of_provider.values()]
