"""End a command within two seconds of Ctrl-C, with one line and exit code 130.

While a command imports its modules, nothing has been started, and it ends at once. Later Ctrl-C raises an
exception, so that rows are kept. If code swallows the exception, the process exits after ``LONGEST_S`` at the
latest. The processes that it started then end by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from types import FrameType

LONGEST_S = 1.5
"""Seconds from Ctrl-C to a forced exit. The rest of the two seconds is left for processes to end."""

AGAIN_S = 1.0

CODE = 128 + signal.SIGINT


def end_on_interrupt() -> None:
    """Let Ctrl-C end this process with one line, unless ``nohup`` ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt in a command, and end the process if the exception does not."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _raise)


def end() -> None:
    """End an interrupted command without Python's own clean-up, which may take long."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # ``_raise`` ignores it from then on
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CODE)


@contextmanager
def insistent() -> Iterator[None]:
    """Raise KeyboardInterrupt for every signal that ends a command, and again each second until the context
    is left: a library, or a callback of Python's garbage collector, may swallow the exception."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
        raise KeyboardInterrupt

    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = {
        number: signal.signal(number, stop)
        for number in ends
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    _say("Stopped.")
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> None:
    # Raise once: a second Ctrl-C must not interrupt the code that keeps the rows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = Timer(LONGEST_S, _give_up)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _give_up() -> None:
    _say("Stopped. What was measured is kept, and the same command goes on from there.")
    os._exit(CODE)


def _say(line: str) -> None:
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
