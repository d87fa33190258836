"""Ctrl-C at any moment: within two seconds a command has ended, with one line and exit code 130.

While a command's modules are imported nothing has been started, and it ends at once. Later Ctrl-C is an
exception, so that what was measured is kept; where that is not enough, as code that it passes through may
swallow it, the process ends a moment later. Processes that it started end with it by themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Timer
from types import FrameType

LONGEST_S = 1.5
"""After Ctrl-C; the rest of the two seconds is for what ends by itself."""

CODE = 128 + signal.SIGINT


def at_once() -> None:
    """From now on Ctrl-C ends this process with one line; unless it is ignored, as by ``nohup``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raised() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, and ends this process if that does not."""
    if signal.getsignal(signal.SIGINT) in (_end, signal.default_int_handler):
        signal.signal(signal.SIGINT, _raise)


def is_command(words: list[str], program: str) -> bool:
    """Whether a process with this command line is one that a user typed: ``python -m pipeline.NAME`` or the
    console script."""
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    of_ours = [name for name in module if name.partition(".")[0] == "pipeline" and name.count(".") < 2]
    return bool(of_ours) or os.path.basename(program) == "kernel-pipeline"  # noqa: PTH119 - imported first


def _end(number: int, frame: FrameType | None) -> None:
    _say("Stopped; nothing was started yet.")
    os._exit(CODE)


def _raise(number: int, frame: FrameType | None) -> None:
    # The first alone: a user who is impatient does not interrupt what keeps the rows.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    last = Timer(LONGEST_S, _give_up)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _give_up() -> None:
    _say("Stopped; what was measured is kept, and the same command goes on from there.")
    os._exit(CODE)


def _say(line: str) -> None:
    os.write(sys.stderr.fileno(), f"{line}\n".encode())
