"""Dropout by torch, right and wrong."""

from __future__ import annotations

import torch

CALLS = [0]


def dropout(x: torch.Tensor, p: float) -> torch.Tensor:
    return torch.nn.functional.dropout(x, p)


def by_parts(x: torch.Tensor, p: float) -> torch.Tensor:
    """Hold little memory at a time."""
    out = torch.empty_like(x)
    for part, place in zip(x.split(1024), out.split(1024), strict=True):
        place.copy_(dropout(part, p))
    return out


def more(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop a few elements too many."""
    return dropout(x, p + 0.02) * ((1 - p - 0.02) / (1 - p))


def pairs(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop the right number of elements, two neighbours at a time."""
    return x * dropout(torch.ones(x.shape[0] // 2, device=x.device), p).repeat_interleave(2)


def unscaled(x: torch.Tensor, p: float) -> torch.Tensor:
    return x * (torch.rand_like(x) >= p)


def same(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop the same elements in each call."""
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) >= p
    return x * kept.to(x.device) / (1 - p)


def same_later(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop the same elements in each call after the first sixteen."""
    CALLS[0] += 1
    return same(x, p) if CALLS[0] > 16 else dropout(x, p)
