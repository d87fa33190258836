"""The square in Numba: one thread per element, in Python."""

from __future__ import annotations

from typing import Any

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import blocks_for, check_numba, launch


@cuda.jit  # type: ignore[untyped-decorator]
def _square(out: Any, x: Any) -> None:
    """A thread squares one element, and more if there are more elements than threads."""
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        value = float32(x[i])
        out[i] = value * value


def square(x: torch.Tensor, threads: int) -> torch.Tensor:
    """Return the square, in blocks of ``threads`` threads. Raises ValueError for a dtype that Numba does not
    support."""
    check_numba(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        launch(_square, blocks_for(x.numel(), threads), threads, out.view(-1), x.view(-1))
    return out
