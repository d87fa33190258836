"""The backward pass of GELU's tanh form in Triton, one program for each block of the flat tensors.

It runs on the current CUDA device and returns a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from ..gradient_inputs import check_gradient


@triton.jit  # type: ignore[untyped-decorator]
def _flat(
    d_x: tl.tensor, d_out: tl.tensor, x: tl.tensor, elements: tl.int64, BLOCK_SIZE: tl.constexpr
) -> None:
    """A program computes BLOCK_SIZE neighbouring elements, in float32.

    With the logistic function s of ``2 * u``, ``0.5 * (1 + tanh(u))`` is s, and ``0.5 * (1 - tanh(u)**2)`` is
    ``2 * s * (1 - s)``. ``1 - s`` is s times the exponential, which does not cancel where s is close to 1; it
    is taken as the logistic function of ``-2 * u``, because the exponential may overflow.
    """
    # 64 bits, for tensors of more than 2**31 elements.
    offset = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offset < elements
    given = tl.load(d_out + offset, mask=inside).to(tl.float32)
    values = tl.load(x + offset, mask=inside).to(tl.float32)
    square = values * values
    # 1.5957691216057308 = 2 * sqrt(2 / pi)
    twice_u = 1.5957691216057308 * (values + 0.044715 * square * values)
    s = 1.0 / (1.0 + tl.exp(-twice_u))
    rest = 1.0 / (1.0 + tl.exp(twice_u))
    # The derivative of 2 * u; 0.134145 = 3 * 0.044715.
    slope = 1.5957691216057308 * (1.0 + 0.134145 * square)
    result = given * (s + values * s * rest * slope)
    tl.store(d_x + offset, result.to(d_x.dtype.element_ty), mask=inside)


def flat(d_out: torch.Tensor, x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the gradient, one program for each block of ``block_size`` elements."""
    check_gradient("gelu_backward", d_out, x)
    d_out, x = d_out.contiguous(), x.contiguous()
    d_x = torch.empty_like(x)
    if x.numel() > 0:
        grid = launch_grid(triton.cdiv(x.numel(), block_size))
        _flat[grid](d_x, d_out, x, x.numel(), BLOCK_SIZE=block_size, num_warps=num_warps)
    return d_x
