"""The workers of one device.

A worker runs the code of one provider only. The next worker starts before its turn.
"""

from __future__ import annotations

from collections.abc import Callable

from .child_process import ChildProcess

Owner = tuple[str, str]
"""A kernel's address and the name of its provider."""

MOST_KEPT = 2**30
"""The most bytes of its own that a worker keeps while its provider waits for its next turn. A provider may
have allocated tens of GB; to free its memory and to take it again costs 0.2 s."""


class Workers:
    """Hands out the worker of a provider.

    Args:
        launched: returns a worker whose process has been started.
        most_waiting: the most workers that wait, because their providers' turns are likely to come again.
        leave: called with each worker before it waits or is ended, and the most bytes of its GPU's memory
            that it may keep.

    When a provider's turn is over, its worker is ended unless it waits or the provider is ``kept``. A waiting
    worker is idle.
    """

    def __init__(
        self,
        launched: Callable[[], ChildProcess],
        most_waiting: int,
        leave: Callable[[ChildProcess, int], None],
    ) -> None:
        self.kept: Owner | None = None
        self._launched = launched
        self._leave = leave
        self._most_waiting = most_waiting
        self._now: ChildProcess | None = None
        self._owner: Owner | None = None
        self._spare: ChildProcess | None = None
        self._waiting: dict[Owner, ChildProcess] = {}
        self._ending: list[ChildProcess] = []
        self._is_abandoned = False

    @property
    def now(self) -> ChildProcess:
        """The worker whose turn it is."""
        assert self._now is not None, "a worker is launched before it is asked"
        return self._now

    @property
    def is_running(self) -> bool:
        """Whether there is a worker that can get requests."""
        return self._now is not None and self._now.is_running

    def launch(self) -> None:
        """Start a worker's process if none is running. Does not wait for it."""
        if not self.is_running:
            spare, self._spare = self._spare, None
            if spare is not None and not spare.is_alive:
                spare.close()
                spare = None
            self._now, self._owner = spare or self._made(), None

    def turn_to(self, owner: Owner | None) -> None:
        """Make the owner's worker the current one: no other provider's code has run in it.

        With None it is a worker in which no provider's code has run.
        """
        if self.is_running and self._owner in (None, owner):
            self._owner = owner
            return
        self._put_away()
        self._now = self._waiting.pop(owner, None) if owner else None
        self.launch()
        self.now.begin()
        self._owner = owner

    def prepare_next(self) -> None:
        """Start the next worker and let it prepare the device. Does not wait for it."""
        if self._spare is None:
            self._spare = self._made()
            self._spare.begin()

    def settle(self) -> None:
        """Wait until no worker is starting or ending, which would disturb timing on the device."""
        if self._spare is not None:
            self._spare.settle()
            if not self._spare.is_running:
                self._spare = None
        for one in self._ending:
            one.close()
        self._ending.clear()

    def waiting(self) -> list[ChildProcess]:
        """Return the running workers that wait for their providers' next turns."""
        return [one for one in self._waiting.values() if one.is_running]

    def abandon(self) -> None:
        """End all workers from another thread. The thread that waits for an answer gets GoneError."""
        self._is_abandoned = True
        for one in self._all():
            one.abandon()

    def close(self) -> None:
        """End all workers at once."""
        for one in self._all():
            one.end()
        for one in self._all():
            one.close()
        self._now = self._spare = self._owner = None
        self._waiting.clear()
        self._ending.clear()

    def _made(self) -> ChildProcess:
        made = self._launched()
        if self._is_abandoned:
            made.abandon()
        return made

    def _put_away(self) -> None:
        """End the worker whose turn is over, or let it wait."""
        before, owner = self._now, self._owner
        self._now = None
        if before is None or not before.is_running:
            return
        if owner is None or not (owner == self.kept or self._most_waiting):
            self._end(before)
            return
        # The worker unmaps the verifier's memory: the verifier can't free memory that others map.
        self._leave(before, MOST_KEPT if self._most_waiting else 0)
        self._waiting[owner] = before
        others = [one for one in self._waiting if one != self.kept]
        for one in others[: max(0, len(others) - self._most_waiting)]:
            self._end(self._waiting.pop(one))

    def _end(self, one: ChildProcess) -> None:
        if one.is_running:
            self._leave(one, 0)
        one.end()
        self._ending.append(one)

    def _all(self) -> list[ChildProcess]:
        found = [self._now, self._spare, *self._waiting.values(), *self._ending]
        return [one for one in found if one is not None]
