"""Points that can be measured now, found without looking at all of them: a schedule over a thousand devices
is asked a thousand times a second, of a hundred thousand points."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container


class ReadyQueue:
    """The places of points in their order, by their providers. Of two points the one with the lower place is
    the first."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}
        # The first place of each provider, in order, and whose it is.
        self._firsts: list[int] = []
        self._provider_at: dict[int, str] = {}

    def add(self, provider: str, place: int) -> None:
        """A point can be measured."""
        places = self._places.setdefault(provider, [])
        if places and places[0] < place:
            insort(places, place)
            return
        if places:
            self._forget(places[0])
        places.insert(0, place)
        self._note(provider, place)

    def remove(self, provider: str, place: int) -> None:
        """A point does not wait any more."""
        places = self._places[provider]
        is_first = places[0] == place
        del places[bisect_left(places, place)]
        if is_first:
            self._forget(place)
            if places:
                self._note(provider, places[0])
            else:
                del self._places[provider]

    def first_of(self, provider: str) -> int | None:
        """The first point of a provider; None if it has none."""
        places = self._places.get(provider)
        return places[0] if places else None

    def first_beside(self, taken: Container[str], unfinished: Container[str]) -> int | None:
        """The first point of a provider that is in neither, else of one that is not taken, else of all; None
        if there is none."""
        free = [place for place in self._firsts if self._provider_at[place] not in taken]
        whole = (place for place in free if self._provider_at[place] not in unfinished)
        return next(whole, next(iter(free or self._firsts), None))

    def _note(self, provider: str, place: int) -> None:
        insort(self._firsts, place)
        self._provider_at[place] = provider

    def _forget(self, place: int) -> None:
        del self._firsts[bisect_left(self._firsts, place)]
        del self._provider_at[place]
