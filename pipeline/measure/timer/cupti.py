"""Durations as the hardware stamps them, through CUPTI: what the timers are checked against.

Too slow to time every point with (a second for the first use, a tenth for each after), and not to be had
in every container.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch.profiler import ProfilerActivity, profile

REPEATS = 5


def microseconds_a_call(run: Callable[[], object], calls: int) -> float | None:
    """Mean device time of the kernels that ``run`` launches for ``calls`` calls, over the calls.

    None where CUPTI reports no kernels.
    """
    _first_use()
    durations = _durations_us(run, REPEATS)
    # Fewer records than calls are lost records; their mean would be of something else.
    return sum(durations) / (REPEATS * calls) if len(durations) >= REPEATS * calls else None


def _durations_us(run: Callable[[], object], repeats: int) -> list[float]:
    try:
        with _quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(repeats):
                run()
            torch.cuda.synchronize()
    except RuntimeError:
        return []
    return [float(event.device_time) for event in profiled.events() or () if event.device_time > 0]


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
