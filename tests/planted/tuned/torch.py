"""Twice a vector: by torch, and in a way that fails in some configurations."""

from __future__ import annotations

import torch


def mul(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def grid(x: torch.Tensor, block: int, stages: int, order: str) -> torch.Tensor:
    """The further from 64 and 2 stages, the more it does; wrong in blocks of 16, and broken with 4 stages."""
    if stages == 4:
        raise RuntimeError("four stages")
    for _ in range(abs(block.bit_length() - 7) + abs(stages - 2) + (order == "columns")):
        x.clone()
    return x * (3 if block == 16 else 2)
