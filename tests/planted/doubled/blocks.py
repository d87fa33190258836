"""Twice a vector, a block a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .shared import place, twice


@triton.jit
def _double(out: tl.tensor, x: tl.tensor, elements: tl.int64, BLOCK: tl.constexpr) -> None:
    offset = place(BLOCK)
    inside = offset < elements
    tl.store(out + offset, twice(tl.load(x + offset, mask=inside)), mask=inside)


def by_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    out = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), block),)](out, x, x.numel(), BLOCK=block)
    return out


def without_tail(x: torch.Tensor, block: int) -> torch.Tensor:
    """The last block is nobody's, where it is not full."""
    out = torch.empty_like(x)
    _double[(max(1, x.numel() // block),)](out, x, x.numel(), BLOCK=block)
    return out
