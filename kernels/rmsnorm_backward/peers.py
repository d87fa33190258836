"""RMS normalization's backward pass of other projects, where they are installed.

They take each row's factor from their forward pass, so it is computed here before: a kernel reads x, and
three small ones follow.
"""

from __future__ import annotations

import torch

from ..rmsnorm import EPS

Gradients = tuple[torch.Tensor, torch.Tensor]

GEMMA = 1
"""Liger's number of the mode that computes in float32."""


def quack(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by quack's CuTe DSL kernel, which leaves sums over the rows to torch."""
    from quack.rmsnorm import rmsnorm_bwd

    d_x, d_weight, *_ = rmsnorm_bwd(x.contiguous(), weight.contiguous(), d_out.contiguous(), _scale(x))
    return d_x, d_weight


def liger(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Gradients:
    """Return the gradients by Liger's Triton kernel, computed in float32 as in Gemma."""
    from liger_kernel.ops.rms_norm import rms_norm_backward
    from liger_kernel.ops.utils import calculate_settings

    d_x, d_weight = rms_norm_backward(
        *(d_out.contiguous(), x.contiguous(), weight.contiguous(), _scale(x)),
        *(0.0, GEMMA, *calculate_settings(x.shape[1]), False, None),
    )
    return d_x, d_weight


def _scale(x: torch.Tensor) -> torch.Tensor:
    """Return each row's factor in float32."""
    norm = torch.linalg.vector_norm(x, dim=1, dtype=torch.float32)
    return torch.rsqrt(norm.square() / x.shape[1] + EPS)
