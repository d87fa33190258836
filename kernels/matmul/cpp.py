"""The matrix product's C++ operator, which supports ``ieee`` alone."""

from __future__ import annotations

import torch

from .checks import check_ieee


def cpp(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product, computed on the CPU. Raises ValueError unless the inputs are an (m, k) and a (k, n)
    matrix of one dtype and the arithmetic is ``ieee``."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cpp(a, b)
    return out
