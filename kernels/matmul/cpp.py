"""The matrix product's operator in C++, which knows no arithmetic but ``ieee``."""

from __future__ import annotations

import torch

from .checks import check_ieee


def cpp(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """The product on the CPU. Raises ValueError unless the inputs are an (m, k) and a (k, n) matrix of one
    dtype, and for another arithmetic."""
    check_ieee(a, b, arithmetic)
    out: torch.Tensor = torch.ops.matmul.cpp(a, b)
    return out
