"""RMS normalization's backward pass by torch: by separate operators, and fused."""

from __future__ import annotations

import torch

from ..rmsnorm import EPS

Gradients = tuple[torch.Tensor, torch.Tensor]


def gradients(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, weight_shape: torch.Size, eps: float
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the gradients of x and of the weight, for a weight of any number of dimensions, by operators
    that torch differentiates. Without a weight, whose dtype x then has, return None instead of the first.

    torch differentiates its own function by the same formula, computed in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_x, given = x.to(wide), d_out.to(wide)
    of_row = tuple(range(-len(weight_shape), 0))
    scale = torch.rsqrt(wide_x.square().mean(of_row, keepdim=True) + eps)
    normalized = wide_x * scale
    d_weight = (given * normalized).sum_to_size(weight_shape)
    if weight is None:
        return None, d_weight
    scaled = given * weight.to(wide)
    d_x = scale * (scaled - normalized * (scaled * normalized).mean(of_row, keepdim=True))
    return d_x.to(x.dtype), d_weight.to(weight.dtype)


def formula(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by the formulas, one kernel for each operation."""
    d_x, d_weight = gradients(d_out, x, weight, weight.shape, EPS)
    assert d_x is not None
    return d_x, d_weight


def rms_norm_backward(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by torch's fused backward pass. The forward pass is run again for each row's
    factor. A CPU has no fused kernel and computes the formulas."""
    if not x.is_cuda:
        return formula(d_out, x, weight)
    _, scale = torch.ops.aten._fused_rms_norm(x, weight.shape, weight, EPS)
    made: Gradients = torch.ops.aten._fused_rms_norm_backward(
        d_out.contiguous(), x, weight.shape, scale, weight, [True, True]
    )
    return made
