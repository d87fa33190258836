"""Starts a process, and ends it with all that it started when it ends or when its own parent does.

Run as a file, ``python -I -S reaper.py PARENT COMMAND ...``, with nothing but the standard library, so that
it is there at once; or forked from a process that calls ``guard``. It adopts what its descendants leave
behind (prctl(2), PR_SET_CHILD_SUBREAPER), in whatever session or process group that is, and ends as the
process did that it started.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36


def children(pid: int) -> list[int]:
    """The processes that a process started and that have not been waited for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            found += map(int, task.read_text().split())
    return found


def end_all() -> None:
    """Kill every descendant, and wait until none is left: of one whose parent is gone, this process is the
    parent."""
    while left := children(os.getpid()):
        for child in left:
            _kill(child)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(0.001)


def _kill(pid: int) -> None:
    for child in children(pid):
        _kill(child)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_as(status: int) -> NoReturn:
    """End this process as another did, by its status of waitpid(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def name_process(name: str) -> None:
    """Give this process a name of at most 15 characters, which ``ps`` and ``top`` show (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def guard(parent: int, start: Callable[[], NoReturn]) -> NoReturn:
    """Be the reaper of a child that ``start`` becomes: wait for its end, and end as it did."""
    name_process("reaper")
    # What a terminal or a shell sends to the group of the one that asked is not for this process.
    os.setpgid(0, 0)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.getppid() != parent:
        os._exit(1)
    started = os.fork()
    if started == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        # A group of its own: what it sends to its group reaches nobody else.
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        start()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def end(number: int, frame: object) -> None:
        end_all()
        os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = None
    while status is None:
        pid, found = os.waitpid(-1, 0)
        status = found if pid == started else None
    end_all()
    end_as(status)


INTERPRETERS = {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"}
"""What lets a process run Triton under its interpreter and Numba under its simulator. Both are read when a
kernel's module is imported."""

WITHOUT_PLUGINS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRITON_BACKENDS_IN_TREE": "1"}
"""What lets a process import torch and Triton without a look at every installed package, for devices of other
kinds than those that are measured here."""


def under_reaper(command: Sequence[str]) -> list[str]:
    """The command line that runs a command so that it ends, with every process that it has started, when this
    process or the thread that starts it does, however that ends. SIGTERM ends it all, too."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends, so that no orphan keeps a device busy; and
    leave Ctrl-C to the parent, who gets it too.

    Linux: prctl(2). ``parent`` is the parent's process id, which tells whether it is gone already.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    guard(int(sys.argv[1]), lambda: os.execv(sys.argv[2], sys.argv[2:]))
