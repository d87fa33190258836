"""When what was written is brought to the disk: at once where it comes now and then, in groups where it comes
fast.

A call of ``fsync`` takes milliseconds, and a sweep over a thousand GPUs has many rows in that time. What the
operating system was given already survives the end of the process, even ``kill -9``; only a machine that
fails loses what was not yet synced.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Timer
from time import monotonic

ALONE_S = 0.02
"""What is written so many seconds after the last sync began is synced at once."""

WAIT_S = 0.1
"""What is written sooner waits so long for others, and is then synced with them. The promise is 0.2 s: the
other half is for the disk."""


class Syncing:
    """Calls ``sync`` for all that was written, at the latest ``WAIT_S`` after it was.

    The thread that waits is no daemon: a process that ends in any way but by ``kill`` or ``os._exit`` still
    waits for it. What ``sync`` raises there is raised by the next call of ``wrote`` or ``flush``.
    """

    def __init__(self, sync: Callable[[], None], clock: Callable[[], float] = monotonic) -> None:
        self._sync = sync
        self._clock = clock
        self._synced_at = -ALONE_S
        self._timer: Timer | None = None
        self._error: OSError | None = None
        self._lock = Lock()

    def wrote(self) -> None:
        """Something was written. Raises OSError where it, or what was written before, can't be synced."""
        with self._lock:
            self._raise()
            if self._timer is not None:
                return
            if self._clock() - self._synced_at < ALONE_S:
                self._timer = Timer(WAIT_S, self._in_group)
                self._timer.start()
                return
            self._synced_at = self._clock()
        self._sync()

    def flush(self) -> None:
        """Sync what waits, now. Raises OSError as ``wrote`` does."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._sync()
        with self._lock:
            self._raise()

    def _in_group(self) -> None:
        with self._lock:
            if self._timer is None:  # flushed meanwhile
                return
            # What is written from here on is of the next group.
            self._timer = None
            self._synced_at = self._clock()
        try:
            self._sync()
        except OSError as error:
            self._error = error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
