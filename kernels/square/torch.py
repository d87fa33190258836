"""The square by torch, in three forms."""

from __future__ import annotations

import torch


def square(x: torch.Tensor) -> torch.Tensor:
    """Return the square by torch's own function."""
    return torch.square(x)


def mul(x: torch.Tensor) -> torch.Tensor:
    """Return the square as a product of tensors."""
    return x * x


def power(x: torch.Tensor) -> torch.Tensor:
    """Return the square as a power of a tensor; torch has a fast path for the exponent 2."""
    return x**2
