"""Measure the device's ceilings by a large copy and large matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch

from ..records.ceilings import Rates
from ..statistics.quantiles import quantile
from .stopping import Budget, Count, Either
from .timers import Rotation, Samples, Timer
from .timers.cpu import CpuTimer
from .timers.event import EventTimer, timed

COPY_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
ARITHMETIC = {
    **{"float32": "float32", "tf32": "float32", "bfloat16": "bfloat16", "float16": "float16"},
    **{"float8_e4m3fn": "float8_e4m3fn", "float8_fast_accum": "float8_e4m3fn"},
}
"""The dtype of the matrices, by arithmetic."""

ON_GPU_ALONE = ("tf32", "float8_e4m3fn", "float8_fast_accum")
"""Arithmetic that is measured only on a GPU, because a CPU emulates it."""

MATMUL_SIDES = {"cuda": (8192,), "cpu": (128, 1024)}
"""Sides of the square matrices, the largest last. A CPU without instructions for a dtype takes seconds for
the large matrix and reaches the same rate with the small one."""

WORK_S = 2.0
"""Seconds of work before a sustained rate is measured: an H200's power limit takes that long to lower the
clock."""

CALLS = 20

LONG_ENOUGH_US = 200.0
"""A product that takes longer than this, in microseconds, is large enough to show the rate."""


def measure(device: str) -> Rates:
    """Measure a copy in GB/s (bytes read plus bytes written) and matrix products in TFLOP/s by arithmetic, on
    random data.

    Each rate uses the 20th percentile of the times: noise only slows a call, but a momentary clock boost is
    not a ceiling. Arithmetic that the device does not support is left out.
    """
    timer: Timer = EventTimer(0) if device == "cuda" else CpuTimer()
    stop = Either(Count(40), Budget(2.0))
    size = COPY_BYTES[device]
    if device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        size = min(size, free // 4)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    copy_us = p20(timer.measure(Rotation(target.copy_, ((source,),)), stop))
    del source, target
    tflops: dict[str, float] = {}
    sustained: dict[str, float] = {}
    for name, dtype in ARITHMETIC.items():
        if name in ON_GPU_ALONE and device != "cuda":
            continue
        multiply = _multiply(name)
        for side in MATMUL_SIDES[device]:
            a, b = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            try:
                matmul_us = p20(timer.measure(Rotation(partial(multiply, b), ((a,),)), stop))
            except (RuntimeError, ValueError):
                break
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            tflops[name] = 2 * side**3 / matmul_us / 1e6
            if matmul_us > LONG_ENOUGH_US:
                break
        if device == "cuda" and name in tflops:
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            sustained[name] = 2 * side**3 / _after_work(partial(multiply, a, b)) / 1e6
            torch.backends.cuda.matmul.allow_tf32 = False
    return Rates(copy_gbps=2 * size / copy_us / 1e3, matmul_tflops=tflops, sustained_tflops=sustained)


def _multiply(arithmetic: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return torch's matrix product for an arithmetic. For float8 it is the scaled product with the second
    matrix transposed, because torch requires it to be column-major."""
    if not arithmetic.startswith("float8"):
        return torch.mm

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(
            a,
            b.t(),
            scale_a=one,
            scale_b=one,
            out_dtype=torch.bfloat16,
            use_fast_accum=arithmetic == "float8_fast_accum",
        )

    one = torch.ones((), device="cuda")
    return scaled


def _after_work(call: Callable[[], torch.Tensor]) -> float:
    """Return the 20th percentile of the times of ``CALLS`` calls, in microseconds, on a GPU that has repeated
    the call for ``WORK_S`` seconds."""
    begin = perf_counter()
    while perf_counter() - begin < WORK_S:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    return quantile(sorted(timed(call, CALLS)), 0.2)


def p20(samples: Samples) -> float:
    """Return the 20th percentile of the samples, in microseconds."""
    return quantile(sorted(samples.samples_us), 0.2)
