"""The matrix product of other projects, where they are installed."""

from __future__ import annotations

import torch


def quack(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """Return the product by quack's CuTe DSL kernel, in the configuration that quack's heuristic chooses."""
    del arithmetic
    from quack.gemm_interface import gemm

    out: torch.Tensor = gemm(a, b, tuned=False)
    return out
