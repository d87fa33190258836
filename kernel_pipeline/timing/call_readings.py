"""Readings of a few calls that are not timed: the memory that a call allocates beyond its inputs and outputs,
and its time on the host."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ..loading import Tensors, as_tuple

BLOCK = 512
"""torch's CUDA allocator gives memory in multiples of this number of bytes."""

HOST_CALLS, HOST_S = 30, 0.1
"""The most calls that measure the host's time, and the seconds after which no further call is made."""


def bytes_of_call(call: Callable[..., Any], inputs: Tensors, in_place: bool) -> int:
    """Call once, and return the most bytes of torch's allocators that were in use at a time during the call,
    without those in use before and without the outputs. ``in_place`` says that the outputs are inputs.

    On a GPU it is the device's memory, on a CPU the host's. Memory that the provider allocates by other means
    or keeps from earlier calls is not seen.
    """
    on_gpu = any(x.is_cuda for x in inputs)
    most, outputs = (_on_gpu if on_gpu else _on_cpu)(lambda: as_tuple(call(*inputs)))
    block = BLOCK if on_gpu else 1
    returned = 0 if in_place else sum(ceil(out.nbytes / block) * block for out in outputs)
    return max(0, most - returned)


def _on_gpu(call: Callable[[], Tensors]) -> tuple[int, Tensors]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, outputs


def _on_cpu(call: Callable[[], Tensors]) -> tuple[int, Tensors]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        outputs = call()
    now = most = 0
    assert profile.profiler is not None and profile.profiler.kineto_results is not None, "it has ended"
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":  # an allocation, or with negative bytes its end
            now += event.nbytes()
            most = max(most, now)
    return most, outputs


def host_us(call: Callable[..., Any], inputs: Tensors) -> float:
    """Return the median microseconds until a call on a GPU returns to the host.

    Each call finds the GPU idle, so no call waits for room in the GPU's queue.
    """
    times: list[float] = []
    torch.cuda.synchronize()
    started = perf_counter()
    while len(times) < HOST_CALLS and perf_counter() - started < HOST_S:
        begin = perf_counter()
        call(*inputs)
        times.append((perf_counter() - begin) * 1e6)
        torch.cuda.synchronize()
    return median(times)
