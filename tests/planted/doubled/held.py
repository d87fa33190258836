"""Twice a vector that one program holds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import shared


@triton.jit
def _double(out: tl.tensor, x: tl.tensor, elements: tl.int64, BLOCK: tl.constexpr) -> None:
    offset = shared.place(BLOCK)
    inside = offset < elements
    tl.store(out + offset, shared.twice(tl.load(x + offset, mask=inside)), mask=inside)


def all_held(x: torch.Tensor, block: int) -> torch.Tensor:
    if x.numel() > block:
        raise ValueError(f"one block holds all: {x.numel()} elements > {block}")
    out = torch.empty_like(x)
    _double[(1,)](out, x, x.numel(), BLOCK=block)
    return out
