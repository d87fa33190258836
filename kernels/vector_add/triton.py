"""The sum of two vectors in Triton: one program for each block of neighbouring elements.

It runs on the current CUDA device and returns a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_vectors


@triton.jit  # type: ignore[untyped-decorator]
def _add(out: tl.tensor, x: tl.tensor, y: tl.tensor, elements: tl.int64, BLOCK_SIZE: tl.constexpr) -> None:
    """A program adds BLOCK_SIZE neighbouring elements; the last program may have fewer."""
    pid = tl.program_id(0).to(tl.int64)
    offset = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offset < elements
    total = tl.load(x + offset, mask=inside).to(tl.float32) + tl.load(y + offset, mask=inside).to(tl.float32)
    tl.store(out + offset, total.to(out.dtype.element_ty), mask=inside)


def add(x: torch.Tensor, y: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the sum, one program for each block of ``block_size`` elements. Raises ValueError unless the
    inputs are two vectors of one length and dtype."""
    check_vectors(x, y)
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        grid = launch_grid(triton.cdiv(x.numel(), block_size))
        _add[grid](out, x, y, x.numel(), BLOCK_SIZE=block_size, num_warps=num_warps)
    return out
