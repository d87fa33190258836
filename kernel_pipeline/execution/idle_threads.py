"""Find threads of an idle worker that compute: they take the cores from timed calls."""

from __future__ import annotations

from time import perf_counter, sleep

from ..machine import load
from .child_process import ChildProcess

COMPUTES = 0.5
"""A process computes if all its threads together want more than this share of one core."""

SPIN_S = 0.3
"""The seconds that a runtime's threads may spin after their work. Intel's OpenMP spins for 0.2 s."""

LOOK_S, LONG_LOOK_S = 0.02, 0.3
"""The durations of a short and a long look at an idle process."""

LEAST_RAN = 0.04
"""A thread that computes gets this share of a core even if a dozen others want the same core."""


def have_computed(worker: ChildProcess, before: load.Threads, begin: float) -> bool:
    """Whether an idle worker's threads compute now and have computed since ``begin``, a time of
    ``perf_counter``. ``before`` are its threads at ``begin``.
    """
    sleep(max(0.0, begin + LOOK_S - perf_counter()))
    return _wanted_a_core(worker, before, begin) and compute(worker)


def compute(worker: ChildProcess) -> bool:
    """Whether an idle worker's threads compute for longer than a runtime's threads spin."""
    sleep(SPIN_S)
    before, begin = worker.threads(), perf_counter()
    sleep(LOOK_S)
    if not _wanted_a_core(worker, before, begin):
        return False
    # On a busy host a thread that wakes briefly waits for a core as long as a thread that computes.
    sleep(LONG_LOOK_S)
    had = load.scheduled(before, worker.threads())
    return had.ran_us > LEAST_RAN * 1e6 * (perf_counter() - begin)


def _wanted_a_core(worker: ChildProcess, before: load.Threads, begin: float) -> bool:
    """Whether the worker's threads have computed, or have waited for a core, since ``begin``."""
    had = load.scheduled(before, worker.threads())
    return had.ran_us + had.waited_us > COMPUTES * 1e6 * (perf_counter() - begin)
