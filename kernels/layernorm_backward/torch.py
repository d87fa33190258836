"""Layer normalization's backward pass by torch: by separate operators, and by its own kernels."""

from __future__ import annotations

import torch

from ..layernorm import EPS

Gradients = tuple[torch.Tensor, ...]


def formula(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by the formulas, in float32 at least, one kernel for each operation."""
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_x, given = x.to(wide), d_out.to(wide)
    centered = wide_x - wide_x.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + EPS)
    normalized = centered * scale
    scaled = given * weight.to(wide)
    of_normalized = (scaled * normalized).mean(dim=-1, keepdim=True)
    d_x = scale * (scaled - scaled.mean(dim=-1, keepdim=True) - normalized * of_normalized)
    d_weight = (given * normalized).sum(dim=0)
    return d_x.to(x.dtype), d_weight.to(x.dtype), given.sum(dim=0).to(x.dtype)


def gradients(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Gradients:
    """Return the gradients of x, weight and bias by torch's backward operator, for a weight of any number of
    dimensions. The forward pass is run again for each row's mean and factor.

    The operators take the weight for the bias, too: of a bias only the shape and the dtype matter."""
    shape = list(weight.shape)
    _, mean, scale = torch.native_layer_norm(x, shape, weight, weight, eps)
    made: Gradients = torch.ops.aten.native_layer_norm_backward(
        d_out.contiguous(), x, shape, mean, scale, weight, weight, [True, True, True]
    )
    return made


def layer_norm_backward(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by torch's backward kernels, after a forward pass for the statistics. On a CPU
    they are computed in float32 at least, because the CPU's kernels round the statistics to the dtype."""
    if x.is_cuda:
        return gradients(d_out, x, weight, EPS)
    wide = torch.promote_types(x.dtype, torch.float32)
    made = gradients(d_out.to(wide), x.to(wide), weight.to(wide), EPS)
    return tuple(one.to(x.dtype) for one in made)
