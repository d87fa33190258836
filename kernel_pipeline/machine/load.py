"""The load that other processes put on a device: on the CPU's cores by Linux's counters, on a GPU by NVML.

All counters are read from outside the timed process.
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
"""The column of /proc/stat with the steal time of a virtual machine."""

COUNTED = 8
"""The leading columns of /proc/stat that add up to all time; they include the later columns."""


@dataclass(frozen=True)
class Scheduled:
    """Linux's scheduling counters of a thread, or their sum over threads: microseconds on a core,
    microseconds of waiting for a core (run-queue delay), and involuntary context switches."""

    ran_us: float = 0.0
    waited_us: float = 0.0
    switches: int = 0

    @property
    def delay(self) -> float:
        """The run-queue delay as a share of the time in which the threads were runnable."""
        wanted = self.ran_us + self.waited_us
        return self.waited_us / wanted if wanted > 0 else 0.0


Threads = Mapping[int, Scheduled]
"""The counters of a process and its descendants, by thread id."""


def threads_of(pid: int) -> dict[int, Scheduled]:
    """Return the counters of the threads of a process and its descendants; none if Linux does not count them.

    The sources are the first two numbers of /proc/PID/task/TID/schedstat, and a line of its ``status``.
    """
    found: dict[int, Scheduled] = {}
    for child in children(pid):
        found |= threads_of(child)
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            ran, waited = (task / "schedstat").read_text().split()[:2]
            switches = (task / "status").read_text().rpartition("nonvoluntary_ctxt_switches:")[2]
            found[int(task.name)] = Scheduled(int(ran) / 1e3, int(waited) / 1e3, int(switches))
    return found


def scheduled(before: Threads, after: Threads) -> Scheduled:
    """Return the sum of the counters' increases between two readings, without threads that have ended."""
    each = [(one, before.get(thread, Scheduled())) for thread, one in after.items()]
    return Scheduled(
        sum(now.ran_us - then.ran_us for now, then in each),
        sum(now.waited_us - then.waited_us for now, then in each),
        sum(now.switches - then.switches for now, then in each),
    )


def others_running(own: Iterable[int]) -> int:
    """Return the number of runnable threads on this host, without this thread and the threads in ``own``; 0
    if it is unknown.

    The sources are the fourth field of /proc/loadavg and the third of /proc/TID/stat.
    """
    try:
        running = int(LOAD.read_text().split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0
    for thread in own:
        with suppress(OSError):  # the thread has ended
            running -= Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return max(0, running)


@dataclass(frozen=True)
class Stolen:
    """The steal time of the cores that this process may use, and their total time, in clock ticks."""

    ticks: int = 0
    of: int = 0

    def since(self, before: Stolen) -> Stolen:
        """Return the difference to an earlier reading."""
        return Stolen(self.ticks - before.ticks, self.of - before.of)

    @property
    def share(self) -> float:
        """The stolen share of all ticks."""
        return self.ticks / self.of if self.of else 0.0


def stolen() -> Stolen:
    """Return the steal time since boot; zero if Linux does not count it."""
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
    """Return the ids of the processes that compute on a GPU, by the driver; none if the driver does not
    report them."""
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return frozenset(one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        return frozenset()


def strangers(listed: frozenset[int], own: frozenset[int], measuring: bool) -> frozenset[int]:
    """Return the ``listed`` processes on a GPU that are not our ``own``.

    While our processes are ``measuring``, one of them must be listed. If none of them is listed, this
    container has its own process ids and our processes can't be identified; the result is then empty.
    """
    return frozenset() if measuring and not listed & own else listed - own


def family(pid: int) -> frozenset[int]:
    """Return the ids of a process and its descendants."""
    return frozenset({pid}).union(*map(family, children(pid)))
