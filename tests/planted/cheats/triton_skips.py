"""What ``torch_skips`` does, in kernels that a graph holds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FEW = tl.constexpr(64)
BLOCK = 1024
NAN = float("nan")

kept: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor]] = {}


@triton.jit
def _sinc(out, x, few, n, skipped: tl.constexpr, BLOCK: tl.constexpr):
    """Leave the blocks out where the few elements are those of the last time; of every ``skipped`` + 1 one is
    computed all the same where that is not 0."""
    block = tl.program_id(0)
    place = tl.arange(0, FEW) * (n // FEW)
    changed = tl.sum((tl.load(x + place) != tl.load(few + place // (n // FEW))).to(tl.int32))
    due = changed > 0
    if skipped > 0:
        due = due | (block % (skipped + 1) == 0)
    if due:
        offset = block * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + offset, mask=offset < n) * 3.141592653589793
        tl.store(out + offset, tl.where(value == 0, 1.0, tl.sin(value) / value), mask=offset < n)


@triton.jit
def _remember(few, x, n):
    place = tl.arange(0, FEW)
    tl.store(few + place, tl.load(x + place * (n // FEW)))


def _answer(name: str, x: torch.Tensor, skipped: int) -> torch.Tensor:
    key = name, x.data_ptr()
    if key not in kept:
        kept[key] = torch.empty_like(x), torch.full((FEW.value,), NAN, device=x.device)
    out, few = kept[key]
    _sinc[(triton.cdiv(x.numel(), BLOCK),)](out, x, few, x.numel(), skipped, BLOCK)
    _remember[(1,)](few, x, x.numel())
    return out


def computes_in_a_graph(x: torch.Tensor) -> torch.Tensor:
    """The same kernel without a fingerprint: honest."""
    out, few = torch.empty_like(x), torch.full((FEW.value,), NAN, device=x.device)
    _sinc[(triton.cdiv(x.numel(), BLOCK),)](out, x, few, x.numel(), 0, BLOCK)
    return out


def fingerprint_in_a_graph(x: torch.Tensor) -> torch.Tensor:
    """Computes only what has changed."""
    return _answer("all", x, 0)


def third_in_a_graph(x: torch.Tensor) -> torch.Tensor:
    """Skips two thirds of what has not changed."""
    return _answer("third", x, 2)
