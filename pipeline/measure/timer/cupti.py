"""Durations as the hardware stamps them, through CUPTI: what the timers are checked against.

Too slow to time every point with (a second for the first use, a tenth for each after), and not to be had
in every container.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

REPEATS = 5


def microseconds_a_call(run: Callable[[], object], calls: int) -> float | None:
    """Mean device time of the kernels that ``run`` launches for ``calls`` calls, over the calls.

    None where CUPTI reports no kernels.
    """
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(REPEATS):
                run()
            torch.cuda.synchronize()
    except RuntimeError:
        return None
    total = sum(event.device_time for event in profiled.events() or ())
    return float(total) / (REPEATS * calls) if total > 0 else None
