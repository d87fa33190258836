"""A provider in a file of its own."""

from __future__ import annotations

import torch

from .sums import twice


def add(x: torch.Tensor, block_size: int) -> torch.Tensor:
    return twice(x)
