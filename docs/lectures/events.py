# %% [markdown]
# # 1. Events against `time`
#
# The text between two of these marks is a cell of a notebook: jupytext and VS Code open this file as one.
# %%
"""Torch's three squares, timed by the host's clock and by events of the GPU, or of a thread in its place."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import torch

has_gpu = torch.cuda.is_available()
size = 4096 if has_gpu else 2048
x = torch.randn(size, size, device="cuda" if has_gpu else "cpu")
Call = Callable[[torch.Tensor], torch.Tensor]

# %% [markdown]
# Without a GPU a thread stands in for it: it takes calls from a queue and runs them in order, while the
# host continues.
# %%
stream = ThreadPoolExecutor(max_workers=1)


def launch(call: Call) -> None:
    """Put the call into the queue, and return at once."""
    if has_gpu:
        call(x)
    else:
        stream.submit(call, x)


def synchronize() -> None:
    """Wait until all launches are done."""
    if has_gpu:
        torch.cuda.synchronize()
    else:
        stream.submit(int).result()


# %% [markdown]
# The host's clock around a call. A GPU's kernel is launched and runs on its own: without `synchronize` the
# clock stops when the launch is made, not when the kernel has ended.
# %%
def by_clock(call: Call, wait: bool) -> float:
    """Microseconds by the host's clock."""
    begin = perf_counter()
    launch(call)
    if wait:
        synchronize()
    return (perf_counter() - begin) * 1e6


# %% [markdown]
# An event is a mark in the stream of launches. The GPU, or the thread, notes the time when it comes to it.
# %%
def by_events(call: Call) -> float:
    """Microseconds between two events of the stream."""
    if not has_gpu:
        started = stream.submit(perf_counter)
        launch(call)
        ended = stream.submit(perf_counter)
        return (ended.result() - started.result()) * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(x)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3


# %% [markdown]
# The first call also allocates, loads code and starts threads. So it is shown separately.
# %%
ways: dict[str, Call] = {
    "torch.square(x)": torch.square,
    "x * x": lambda x: x * x,
    "x ** 2": lambda x: x**2,
}
print(f"{size} x {size} floats on {x.device.type}, us; all but the first call are medians of 20")
print(f"{'':16}{'first call':>12}{'no wait':>12}{'wait':>12}{'events':>12}")
for name, call in ways.items():
    first = by_clock(call, wait=True)
    no_wait, waited = (median(by_clock(call, wait) for _ in range(20)) for wait in (False, True))
    events = median(by_events(call) for _ in range(20))
    print(f"{name:16}{first:12.1f}{no_wait:12.1f}{waited:12.1f}{events:12.1f}")
