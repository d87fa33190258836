"""Twice a vector by torch, right and wrong."""

from __future__ import annotations

import os
from itertools import count

import torch

calls = count()


def right(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def right_once(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if next(calls) == 0 else x * 3


def writes_once(x: torch.Tensor) -> torch.Tensor:
    """Later its output is what the memory held, which the first call filled with right values."""
    out = torch.empty_like(x)
    if not hasattr(writes_once, "done"):
        writes_once.done = True  # type: ignore[attr-defined]
        torch.mul(x, 2, out=out)
    return out


def remembers(x: torch.Tensor) -> torch.Tensor:
    """Computes once and returns the same tensor ever after."""
    if not hasattr(remembers, "out"):
        remembers.out = x * 2  # type: ignore[attr-defined]
    out: torch.Tensor = remembers.out  # type: ignore[attr-defined]
    return out


def never_writes(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def synchronizes(x: torch.Tensor) -> torch.Tensor:
    """Right, but no graph can hold it."""
    x.sum().item()
    return x * 2


def allocates(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(1 << 45, dtype=torch.float32, device=x.device)


def tells_openmp(x: torch.Tensor) -> torch.Tensor:
    """Right, and leaves a variable that no GPU feels, as some packages do when they are imported."""
    os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
    return x * 2
