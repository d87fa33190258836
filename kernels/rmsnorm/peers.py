"""RMS normalization of other projects, where they are installed."""

from __future__ import annotations

import torch

from . import EPS


def quack(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return RMS normalization by quack's CuTe DSL kernel, without its autograd function."""
    from quack.rmsnorm import rmsnorm_fwd

    out: torch.Tensor = rmsnorm_fwd(x.contiguous(), weight.contiguous(), eps=EPS)[0]
    return out


def liger(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return RMS normalization by Liger's Triton kernel, rounded as in Llama; it also stores each row's
    scale."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    out: torch.Tensor = rms_norm_forward(x.contiguous(), weight.contiguous(), EPS, 0.0, "llama", None)[0]
    return out
