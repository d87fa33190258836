"""Points that can be measured now, found without looking at all of them: a schedule over a thousand devices
is asked a thousand times a second, of a hundred thousand points."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container

from pipeline.points.frozen import Values


class ReadyQueue:
    """The places of points in their order, by their problems. Of two points the one with the lower place is
    the first."""

    def __init__(self) -> None:
        self._places: dict[Values, list[int]] = {}
        # The first place of each problem, in order, and whose it is.
        self._firsts: list[int] = []
        self._problem_at: dict[int, Values] = {}

    def add(self, problem: Values, place: int) -> None:
        """A point can be measured."""
        places = self._places.setdefault(problem, [])
        if places and places[0] < place:
            insort(places, place)
            return
        if places:
            self._forget(places[0])
        places.insert(0, place)
        self._note(problem, place)

    def remove(self, problem: Values, place: int) -> None:
        """A point does not wait any more."""
        places = self._places[problem]
        is_first = places[0] == place
        del places[bisect_left(places, place)]
        if is_first:
            self._forget(place)
            if places:
                self._note(problem, places[0])
            else:
                del self._places[problem]

    def first_of(self, problem: Values) -> int | None:
        """The first point of a problem; None if it has none."""
        places = self._places.get(problem)
        return places[0] if places else None

    def first_beside(self, others: Container[Values]) -> int | None:
        """The first point of a problem that is none of the others, else the first of all; None if there is
        none."""
        free = (place for place in self._firsts if self._problem_at[place] not in others)
        return next(free, self._firsts[0] if self._firsts else None)

    def _note(self, problem: Values, place: int) -> None:
        insort(self._firsts, place)
        self._problem_at[place] = problem

    def _forget(self, place: int) -> None:
        del self._firsts[bisect_left(self._firsts, place)]
        del self._problem_at[place]
