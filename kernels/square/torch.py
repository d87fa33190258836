"""The square by torch, in three forms."""

from __future__ import annotations

import torch


def square(x: torch.Tensor) -> torch.Tensor:
    """torch's own function for it."""
    return torch.square(x)


def mul(x: torch.Tensor) -> torch.Tensor:
    """The product as Python writes it."""
    return x * x


def power(x: torch.Tensor) -> torch.Tensor:
    """The power as Python writes it; torch has a fast path for the exponent 2."""
    return x**2
