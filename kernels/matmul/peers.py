"""The matrix product by other projects, where they are installed."""

from __future__ import annotations

import torch


def quack(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """quack's kernel in the CuTe DSL, in the configuration that its heuristic takes."""
    del arithmetic
    from quack.gemm_interface import gemm

    out: torch.Tensor = gemm(a, b, tuned=False)
    return out
