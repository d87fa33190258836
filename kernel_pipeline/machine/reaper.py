"""The reaper: start a process, and kill it and all its descendants when the process or the reaper's parent
ends.

The reaper runs as ``python -I -S reaper.py PARENT COMMAND ...`` with only the standard library, so that it
starts fast, or in a forked process that calls ``guard``. It adopts orphaned descendants in any session or
process group (prctl(2), PR_SET_CHILD_SUBREAPER), and ends with the exit status or signal of the process.
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

WATCH_S = 0.05
"""The interval in seconds at which a watched process is looked at."""


def children(pid: int) -> list[int]:
    """Return the ids of a process's children that have not been waited for."""
    found: list[int] = []
    with suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # the thread has ended
                found += map(int, task.read_text().split())
    return found


def end_all() -> None:
    """Kill all descendants and wait until none is left. Orphaned descendants become children of this
    process."""
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
    """End this process with the exit status or signal of another, given its status from waitpid(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def name_process(name: str) -> None:
    """Give this process a name of at most 15 characters, which ``ps`` and ``top`` show (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def guard(
    parent: int, start: Callable[[], NoReturn], watch: Callable[[int], str | None] | None = None
) -> NoReturn:
    """Become the reaper of a child process that runs ``start``: wait for its end, and end in the same way.

    ``watch`` gets the child's process id at intervals. If it returns a reason, all processes are killed, and
    the reason is the last line of their output.
    """
    name_process("reaper")
    # Signals that a terminal or shell sends to the caller's process group must not reach the reaper.
    with suppress(PermissionError):  # the leader of a session has its own group
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
        # In its own process group, the child's signals to its group reach no other process.
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        start()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))

    def end(number: int, frame: object) -> None:
        end_all()
        os.kill(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = None
    while status is None:
        pid, found = os.waitpid(-1, 0 if watch is None else os.WNOHANG)
        status = found if pid == started else None
        if pid == 0 and watch is not None:
            if text := watch(started):
                _end_with(text)
            signal.sigtimedwait({signal.SIGCHLD}, WATCH_S)
    end_all()
    end_as(status)


def _end_with(text: str) -> NoReturn:
    """Kill all descendants and this process, after whose output ``text`` is written."""
    end_all()
    os.write(2, f"{text}\n".encode())
    end_as(signal.SIGKILL)


INTERPRETERS = {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"}
"""The variables that make Triton use its interpreter and Numba its simulator. They are read when a kernel's
module is imported."""

WITHOUT_PLUGINS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRITON_BACKENDS_IN_TREE": "1"}
"""The variables that keep torch and Triton from searching all installed packages for backends of other
devices."""


def under_reaper(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a command under a reaper. The command and all its descendants end
    when this process, or the thread that starts the command, ends in any way. SIGTERM to the reaper ends
    them, too."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """Make Linux kill this process when its parent ends in any way, so that no orphan keeps a device busy.
    Ignore Ctrl-C, which the parent handles.

    ``parent`` is the parent's process id; if the parent has ended already, exit at once. See prctl(2).
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    guard(int(sys.argv[1]), lambda: os.execv(sys.argv[2], sys.argv[2:]))
