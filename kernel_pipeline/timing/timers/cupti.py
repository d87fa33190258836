"""Kernel durations by CUPTI's hardware timestamps, to check the timers against.

CUPTI is too slow to time every point (a second for the first use, a tenth of a second afterwards), and some
containers do not allow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from .event import timed

REPEATS = 5

ATTEMPTS = 3
"""The maximum number of attempts, because CUPTI occasionally loses records."""

WARM_UP_S = 0.01
"""Seconds of uncounted runs at the start: CUPTI's start leaves the device idle, and an H200 is 5 % slow for
the first 2 ms afterwards."""


@dataclass(frozen=True)
class Stamps:
    """Times of a call in microseconds.

    ``duration_us`` is CUPTI's time from the start of the call's first kernel to the end of its last.
    ``gross_us`` is the time per call of the same runs by events; CUPTI's recording lengthens it for some
    kernels.
    """

    duration_us: float
    gross_us: float


def stamped(
    run: Callable[[], object], calls: int, flush: Callable[[], object] | None = None
) -> Stamps | None:
    """Measure by CUPTI the ``calls`` calls that ``run`` launches, each of the same number of kernels.
    ``flush``, which launches one kernel, comes before each run. Return medians, or None if CUPTI does not
    report all kernels.
    """
    _first_use()
    begin = perf_counter()
    run()
    torch.cuda.synchronize()
    warm_up = ceil(WARM_UP_S / (perf_counter() - begin))
    for _ in range(ATTEMPTS):
        kernels, runs_us = _recorded(run, warm_up + REPEATS, flush)
        a_run, lost = divmod(len(kernels), warm_up + REPEATS)
        flushes = int(flush is not None)
        a_call, odd = divmod(a_run - flushes, calls)
        if not lost and not odd and a_call > 0:
            firsts = (
                first
                for of_run in range(warm_up * a_run, len(kernels), a_run)
                for first in range(of_run + flushes, of_run + a_run, a_call)
            )
            spans = [kernels[first + a_call - 1][1] - kernels[first][0] for first in firsts]
            return Stamps(median(spans), median(runs_us[warm_up:]) / calls)
    return None


def _recorded(
    run: Callable[[], object], repeats: int, flush: Callable[[], object] | None = None
) -> tuple[list[tuple[float, float]], list[float]]:
    """Return the start and end of each kernel in order of their start, and the times of the runs by events,
    all in microseconds."""
    try:
        with _quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            if flush is not None:
                flush()
            run()
            runs_us = timed(run, repeats, flush)
    except RuntimeError:
        return [], []
    found = [event.time_range for event in profiled.events() or () if event.device_time > 0]
    kernels = sorted((float(span.start), float(span.end)) for span in found)
    # The first run keeps the device busy until the others are queued.
    return kernels[len(kernels) // (repeats + 1) :], runs_us


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the profiler's warning that each profile starts from nothing, which is intended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@cache
def _first_use() -> None:
    """Start CUPTI by a profile that is not used, because the first profile of a process loses records."""
    _recorded(lambda: torch.zeros(1, device="cuda"), 1)
