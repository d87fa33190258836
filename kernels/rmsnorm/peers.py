"""RMS normalization by other projects, where they are installed."""

from __future__ import annotations

import torch

from . import EPS


def quack(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, without a backward pass."""
    from quack.rmsnorm import rmsnorm_fwd

    out: torch.Tensor = rmsnorm_fwd(x.contiguous(), weight.contiguous(), eps=EPS)[0]
    return out


def liger(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Liger's Triton kernel, rounding as Llama does; it stores each row's scale too."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    out: torch.Tensor = rms_norm_forward(x.contiguous(), weight.contiguous(), EPS, 0.0, "llama", None)[0]
    return out
