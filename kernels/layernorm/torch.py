"""Layer normalization by torch."""

from __future__ import annotations

import torch

from . import EPS


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return layer normalization by torch's fused kernel."""
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, EPS)
