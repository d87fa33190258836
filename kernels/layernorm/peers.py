"""Layer normalization of other projects, where they are installed."""

from __future__ import annotations

import torch

from . import EPS


def quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return layer normalization by quack's CuTe DSL kernel, without its autograd function."""
    # layernorm_fwd would take weight and bias only in float32.
    from quack.rmsnorm import _rmsnorm_fwd

    x = x.contiguous()
    out = torch.empty_like(x)
    _rmsnorm_fwd(x, weight.contiguous(), out, bias.contiguous(), eps=EPS, is_layernorm=True)
    return out


def liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return layer normalization by Liger's Triton kernel, which also stores each row's mean and scale."""
    from liger_kernel.ops.layer_norm import layer_norm_forward

    out: torch.Tensor = layer_norm_forward(x.contiguous(), weight.contiguous(), bias.contiguous(), EPS)[0]
    return out
