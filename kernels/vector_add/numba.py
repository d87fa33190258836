"""The sum of two vectors in Numba: one thread per element, in Python."""

from __future__ import annotations

from typing import Any

import torch
from numba import cuda, float32

from kernel_pipeline.numba_launch import check_numba, launch

from .checks import check_vectors


@cuda.jit  # type: ignore[untyped-decorator]
def _add(out: Any, x: Any, y: Any) -> None:
    """A thread adds one element; threads past the end do nothing."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = float32(x[i]) + float32(y[i])


def add(x: torch.Tensor, y: torch.Tensor, threads: int) -> torch.Tensor:
    """Return the sum, in blocks of ``threads`` threads. Raises ValueError unless the inputs are two vectors
    of one length and of a dtype that Numba supports."""
    check_vectors(x, y)
    check_numba(x)
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        launch(_add, -(-x.numel() // threads), threads, out, x, y)
    return out
