"""Durations as the hardware stamps them, through CUPTI: what the timers are checked against.

Too slow to time every point with (a second for the first use, a tenth for each after), and not to be had
in every container.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil
from statistics import median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

REPEATS = 5

ATTEMPTS = 3
"""CUPTI loses records now and then."""

WARM_UP_S = 0.01
"""Runs before those that count: CUPTI's start leaves the device idle, and an H200's first 2 ms after that are
5 % slow."""


def microseconds_a_call(run: Callable[[], object], calls: int) -> float | None:
    """Device time of the kernels that ``run`` launches for ``calls`` calls, over the calls: the median of
    some runs. None where CUPTI does not report all kernels.
    """
    _first_use()
    begin = perf_counter()
    run()
    torch.cuda.synchronize()
    warm_up = ceil(WARM_UP_S / (perf_counter() - begin))
    for _ in range(ATTEMPTS):
        durations = _durations_us(run, warm_up + REPEATS)
        kernels, lost = divmod(len(durations), warm_up + REPEATS)
        if not lost and kernels >= calls:
            counted = durations[warm_up * kernels :]
            runs = range(0, len(counted), kernels)
            return median(sum(counted[first : first + kernels]) for first in runs) / calls
    return None


def _durations_us(run: Callable[[], object], repeats: int) -> list[float]:
    """Of each kernel, in the order in which they began."""
    try:
        with _quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(repeats):
                run()
            torch.cuda.synchronize()
    except RuntimeError:
        return []
    events = [event for event in profiled.events() or () if event.device_time > 0]
    return [float(event.device_time) for event in sorted(events, key=lambda event: event.time_range.start)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the profiler's remark that each profile starts from nothing, which is what is wanted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@cache
def _first_use() -> None:
    """The first profile of a process starts CUPTI up and loses records."""
    _durations_us(lambda: torch.zeros(1, device="cuda"), 1)
