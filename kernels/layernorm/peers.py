"""Layer normalization by other projects, where they are installed."""

from __future__ import annotations

import torch

from . import EPS


def quack(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, without a backward pass."""
    # Not layernorm_fwd, which takes weight and bias only in float32.
    from quack.rmsnorm import _rmsnorm_fwd

    x = x.contiguous()
    out = torch.empty_like(x)
    _rmsnorm_fwd(x, weight.contiguous(), out, bias.contiguous(), eps=EPS, is_layernorm=True)
    return out


def liger(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Liger's Triton kernel; it stores each row's mean and scale too."""
    from liger_kernel.ops.layer_norm import layer_norm_forward

    out: torch.Tensor = layer_norm_forward(x.contiguous(), weight.contiguous(), bias.contiguous(), EPS)[0]
    return out
