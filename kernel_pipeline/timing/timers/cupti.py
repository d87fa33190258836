"""Durations as the hardware stamps them, through CUPTI: what the timers are checked against.

Too slow to time every point with (a second for the first use, a tenth for each after), and not to be had
in every container.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile

from .event import recorded

REPEATS = 5

ATTEMPTS = 3
"""CUPTI loses records now and then."""

WARM_UP_S = 0.01
"""Runs before those that count: CUPTI's start leaves the device idle, and an H200's first 2 ms after that are
5 % slow."""


@dataclass(frozen=True)
class Stamps:
    """Microseconds of a call as CUPTI stamps it, from its first kernel's start to its last one's end; and a
    call's share of the same runs by events, which CUPTI's records make longer for some kernels."""

    duration_us: float
    gross_us: float


def stamped(run: Callable[[], object], calls: int) -> Stamps | None:
    """What CUPTI stamps of the ``calls`` calls that ``run`` launches, each of as many kernels: the median of
    some runs. None where CUPTI does not report all kernels.
    """
    _first_use()
    begin = perf_counter()
    run()
    torch.cuda.synchronize()
    warm_up = ceil(WARM_UP_S / (perf_counter() - begin))
    for _ in range(ATTEMPTS):
        kernels, runs_us = _recorded(run, warm_up + REPEATS)
        a_call, lost = divmod(len(kernels), (warm_up + REPEATS) * calls)
        if not lost and a_call:
            counted = kernels[warm_up * calls * a_call :]
            firsts = range(0, len(counted), a_call)
            spans = [counted[first + a_call - 1][1] - counted[first][0] for first in firsts]
            return Stamps(median(spans), median(runs_us[warm_up:]) / calls)
    return None


def _recorded(run: Callable[[], object], repeats: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Start and end of each kernel of the runs, in the order in which they began, and the runs' times by
    events, all in microseconds."""
    try:
        with _quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            run()
            events = [recorded()]
            for _ in range(repeats):
                run()
                events.append(recorded())
            torch.cuda.synchronize()
    except RuntimeError:
        return [], []
    found = [event.time_range for event in profiled.events() or () if event.device_time > 0]
    kernels = sorted((float(span.start), float(span.end)) for span in found)
    # The first run keeps the device busy until the others are queued.
    return kernels[len(kernels) // (repeats + 1) :], [a.elapsed_time(b) * 1e3 for a, b in pairwise(events)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the profiler's remark that each profile starts from nothing, which is what is wanted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@cache
def _first_use() -> None:
    """The first profile of a process starts CUPTI up and loses records."""
    _recorded(lambda: torch.zeros(1, device="cuda"), 1)
