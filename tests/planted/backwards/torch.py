"""A vector backwards by torch, and one that is off by an element."""

from __future__ import annotations

import torch


def flip(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


def rolled(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).roll(1)
