"""Starts a process, and ends it with all that it started when it ends or when its own parent does.

Run as a file, ``python -I -S warden.py PARENT COMMAND ...``, with nothing but the standard library, so that
it is there at once. It adopts what its descendants leave behind (prctl(2), PR_SET_CHILD_SUBREAPER), in
whatever session or process group that is, and ends as the process did that it started.
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
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


def end_as(status: int) -> None:
    """End this process as another did, by its status of waitpid(2)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main(parent: int, command: list[str]) -> None:
    """Start the command and wait."""
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
        os.execv(command[0], command)
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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
