"""GELU's tanh form in Triton, one program for each block of the flat tensor.

It runs on the current CUDA device and returns a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import check_dtype, launch_grid


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_flat(out: tl.tensor, x: tl.tensor, elements: tl.int64, BLOCK_SIZE: tl.constexpr) -> None:
    """A program computes BLOCK_SIZE neighbouring elements, in float32.

    ``0.5 * (1 + tanh(u))`` is the logistic function of ``2 * u``, that is ``1 / (1 + exp(-2 * u))``. That
    form needs no tanh and has no cancellation where tanh is close to -1. If exp overflows, it divides by
    infinity, which gives the correct 0.
    """
    # 64 bits, for tensors of more than 2**31 elements.
    offset = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offset < elements
    values = tl.load(x + offset, mask=inside).to(tl.float32)
    # 1.5957691216057308 = 2 * sqrt(2 / pi)
    twice_u = 1.5957691216057308 * (values + 0.044715 * values * values * values)
    result = values / (1.0 + tl.exp(-twice_u))
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=inside)


def gelu_flat(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return GELU, one program for each block of ``block_size`` elements."""
    check_dtype(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    grid = launch_grid(triton.cdiv(x.numel(), block_size))
    _gelu_flat[grid](out, x, x.numel(), BLOCK_SIZE=block_size, num_warps=num_warps)
    return out
