"""The product with four-bit weights as a function of tensors."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, problem_of

from .problem import GROUPS, Problem
from .reference import dequantised, unpack


def matmul_int4(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str = "group_128"
) -> torch.Tensor:
    """``x @ w.T`` with weights in four bits, in x's dtype.

    x: (..., k); packed: int32, as ``torch._weight_int4pack_mm`` takes it; scales_and_zeros: (groups,
    n, 2) of x's dtype; granularity: group_128, group_64, group_32 or channel. Providers take bfloat16 and
    float16. Without a provider, torch dequantises all weights at every call. Raises ValueError unless
    scales_and_zeros has as many groups as the granularity makes of k."""
    w = weights(packed, scales_and_zeros, x.shape[-1], granularity).to(x.dtype)
    return x @ w.t()


def weights(packed: torch.Tensor, scales_and_zeros: torch.Tensor, k: int, granularity: str) -> torch.Tensor:
    """Return the dequantised weights, n by k, in float64."""
    q = unpack(packed.contiguous(), scales_and_zeros.shape[1], k)
    return dequantised(q, scales_and_zeros, granularity)


def refused(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> str | None:
    """Return the reason why the call is invalid, or None."""
    del packed
    k, there = x.shape[-1], scales_and_zeros.shape[0]
    group = GROUPS[granularity]
    groups = -(-k // group) if group else 1
    if there == groups:
        return None
    return f"granularity {granularity} makes {groups} groups of k {k}, and scales_and_zeros has {there}"


def problem(
    x: torch.Tensor, packed: torch.Tensor, scales_and_zeros: torch.Tensor, granularity: str
) -> Problem:
    """Return the problem of multiplying all rows of x."""
    k = x.shape[-1]
    made: Problem = problem_of(
        Problem,
        *(x, scales_and_zeros),
        **{"m": x.numel() // max(k, 1), "n": scales_and_zeros.shape[1], "k": k, "granularity": granularity},
    )
    if (tuple(packed.shape), tuple(scales_and_zeros.shape)) != (made.packed_shape, made.scales_shape):
        raise NotServedError(f"the weights have shape {tuple(packed.shape)}, not {made.packed_shape}.")
    return made


def backward(
    grad: torch.Tensor,
    packed: torch.Tensor,
    scales_and_zeros: torch.Tensor,
    x_shape: torch.Size,
    granularity: str,
) -> tuple[torch.Tensor | None, ...]:
    """Return x's gradient, ``grad @ w``; the weights have none."""
    w = weights(packed, scales_and_zeros, x_shape[-1], granularity).to(grad.dtype)
    return grad @ w, None, None


op = Op(
    definition=matmul_int4,
    problem=problem,
    refused=refused,
    inputs=lambda x, packed, scales, granularity: (as_matrix(x), packed, scales),
    result=lambda made, x, packed, scales, granularity: made.view(*x.shape[:-1], made.shape[1]),
    derivative=Derivative(("packed", "scales_and_zeros", "x.shape", "granularity"), backward),
)
