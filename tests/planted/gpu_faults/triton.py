"""Triton kernels that go wrong, each in a way that only a GPU can show."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024
FAR_OUTSIDE = 1 << 44
"""Elements past the end: no process has memory mapped there."""


@triton.jit
def _double(
    out: tl.tensor, x: tl.tensor, elements: tl.int64, distance: tl.int64, BLOCK: tl.constexpr
) -> None:
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < elements
    tl.store(out + distance + offset, tl.load(x + offset, mask=inside) * 2, mask=inside)


@triton.jit
def _endless(out: tl.tensor, x: tl.tensor) -> None:
    value = tl.load(x, volatile=True)
    while value == value:  # noqa: PLR0124 - until it is NaN, which it never becomes
        value = tl.load(x, volatile=True)
    tl.store(out, value)


@triton.jit
def _product(out: tl.tensor, x: tl.tensor, SIDE: tl.constexpr, DEPTH: tl.constexpr) -> None:
    """Both factors lie in shared memory: 256 KiB each in float32."""
    side, depth = tl.arange(0, SIDE), tl.arange(0, DEPTH)
    a = tl.load(x + side[:, None] * DEPTH + depth[None, :])
    b = tl.load(x + depth[:, None] * SIDE + side[None, :])
    tl.store(out + side[:, None] * SIDE + side[None, :], tl.dot(a, b))


@triton.jit
def _does_not_compile(out: tl.tensor, x: tl.tensor) -> None:
    offset = tl.arange(0, 3)  # must be a power of two
    tl.store(out + offset, tl.load(x + offset))


def triton_right(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), BLOCK),)](out, x, x.numel(), 0, BLOCK=BLOCK)
    return out


def illegal_access(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), BLOCK),)](out, x, x.numel(), FAR_OUTSIDE, BLOCK=BLOCK)
    return out


def endless(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _endless[(1,)](out, x)
    return out


def too_much_shared(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _product[(1,)](out, x, SIDE=128, DEPTH=512, num_warps=16)
    return out


def does_not_compile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _does_not_compile[(1,)](out, x)
    return out
