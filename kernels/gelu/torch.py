"""GELU's tanh form by torch: as separate kernels, and fused."""

from __future__ import annotations

import math

import torch


def manual(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by its formula, one kernel for each operation."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by torch's fused kernel."""
    return torch.nn.functional.gelu(x, approximate="tanh")
