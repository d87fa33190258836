"""The sum of two vectors in C++, on the CPU."""

from __future__ import annotations

import torch

from .checks import check_vectors


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum. Raises ValueError unless the inputs are two vectors of one length and dtype."""
    check_vectors(x, y)
    out: torch.Tensor = torch.ops.vector_add.cpp(x, y)
    return out
