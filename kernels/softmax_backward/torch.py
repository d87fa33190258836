"""Softmax's backward pass by torch: by separate operators, and by its own kernel."""

from __future__ import annotations

import torch


def formula(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient by the formula, in float32 at least, one kernel for each operation."""
    wide = torch.promote_types(out.dtype, torch.float32)
    given, wide_out = d_out.to(wide), out.to(wide)
    return ((given - (given * wide_out).sum(dim=-1, keepdim=True)) * wide_out).to(out.dtype)


def gradient(d_out: torch.Tensor, out: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the gradient along a dimension by torch's backward operator."""
    made: torch.Tensor = torch.ops.aten._softmax_backward_data(d_out, out, dim, out.dtype)
    return made


def softmax_backward(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the rows by torch's backward kernel."""
    return gradient(d_out, out, -1)
