"""What others take of a device: of the cores by Linux's counters, of a GPU by NVML.

All of it is read from outside of the process that is timed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pynvml

from .reaper import children

STAT = Path("/proc/stat")

LOAD = Path("/proc/loadavg")

STEAL = 7
"""The column of /proc/stat with the time that the host of a virtual machine gave to others."""

COUNTED = 8
"""Columns of /proc/stat that together are all time; those behind them are counted in these, too."""


@dataclass(frozen=True)
class Scheduled:
    """How the kernel scheduled a thread, or some: microseconds on a core; microseconds for which it was ready
    to run and had none (its run-queue delay); and how often it had to give a core up."""

    ran_us: float = 0.0
    waited_us: float = 0.0
    switches: int = 0

    @property
    def delay(self) -> float:
        """The run-queue delay over the time in which a core was wanted."""
        wanted = self.ran_us + self.waited_us
        return self.waited_us / wanted if wanted > 0 else 0.0


Threads = Mapping[int, Scheduled]
"""Of a process and its descendants, by thread."""


def threads_of(pid: int) -> dict[int, Scheduled]:
    """How the threads of a process and of its descendants were scheduled so far; none where the kernel does
    not count it.

    Linux: the first two numbers of /proc/PID/task/TID/schedstat, and a line of its ``status``.
    """
    found: dict[int, Scheduled] = {}
    for child in children(pid):
        found |= threads_of(child)
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended meanwhile
            ran, waited = (task / "schedstat").read_text().split()[:2]
            switches = (task / "status").read_text().rpartition("nonvoluntary_ctxt_switches:")[2]
            found[int(task.name)] = Scheduled(int(ran) / 1e3, int(waited) / 1e3, int(switches))
    return found


def scheduled(before: Threads, after: Threads) -> Scheduled:
    """All threads together between two looks; one that has ended by the second is not counted."""
    each = [(one, before.get(thread, Scheduled())) for thread, one in after.items()]
    return Scheduled(
        sum(now.ran_us - then.ran_us for now, then in each),
        sum(now.waited_us - then.waited_us for now, then in each),
        sum(now.switches - then.switches for now, then in each),
    )


def others_running(own: Iterable[int]) -> int:
    """Threads of this host that run or wait for a core now, without this one and those of ``own``; 0 where
    the kernel does not tell.

    Linux: the fourth field of /proc/loadavg, and the third of /proc/TID/stat.
    """
    try:
        running = int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0
    for thread in own:
        with suppress(OSError):  # it has ended meanwhile
            running -= Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return max(0, running)


@dataclass(frozen=True)
class Stolen:
    """Ticks of the cores that this process may use which a host gave to other virtual machines, and all
    ticks."""

    ticks: int = 0
    of: int = 0

    def since(self, before: Stolen) -> Stolen:
        """What was added since an earlier look."""
        return Stolen(self.ticks - before.ticks, self.of - before.of)

    @property
    def share(self) -> float:
        """Of all ticks."""
        return self.ticks / self.of if self.of else 0.0


def stolen() -> Stolen:
    """So far; nothing where the kernel does not count it."""
    cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lost = total = 0
    with suppress(OSError, ValueError):
        for line in STAT.read_text().splitlines():
            name, *columns = line.split()
            if name in cores and len(columns) >= COUNTED:
                lost += int(columns[STEAL])
                total += sum(map(int, columns[:COUNTED]))
    return Stolen(lost, total)


def on_gpu(uuid: str) -> frozenset[int]:
    """The ids of the processes that compute on a GPU, as the driver counts them; none where it does not
    tell."""
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return frozenset(one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return frozenset()


def strangers(listed: frozenset[int], own: frozenset[int], measuring: bool) -> frozenset[int]:
    """Of the processes that compute on a GPU those that are not ours.

    While ours are ``measuring`` there, one of them has to be among those that are listed. If none is, this
    container counts processes in its own way, and nobody can be told from ours: none.
    """
    return frozenset() if measuring and not listed & own else listed - own


def family(pid: int) -> frozenset[int]:
    """A process and its descendants."""
    return frozenset({pid}).union(*map(family, children(pid)))
