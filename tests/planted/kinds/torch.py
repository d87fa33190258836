"""Vectors backwards by torch, on the bits of their elements."""

from __future__ import annotations

import torch


def bits(x: torch.Tensor) -> torch.Tensor:
    """A row of bytes for each element."""
    return x.view(torch.uint8).view(x.numel(), x.itemsize)


def backwards(x: torch.Tensor) -> torch.Tensor:
    return bits(x).flip(0).view(x.dtype).reshape(-1)


def off_by_one(x: torch.Tensor) -> torch.Tensor:
    """The last bit of one element is another."""
    out = bits(x).flip(0)
    out[3, 0] ^= 1
    return out.view(x.dtype).reshape(-1)


def inverted(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.bool:
        return x.flip(0).logical_not()
    return bits(x).flip(0).bitwise_not().view(x.dtype).reshape(-1)


def unwritten(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def half_written(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    half = x.numel() // 2
    out[:half] = backwards(x)[:half]
    return out


def real_alone(x: torch.Tensor) -> torch.Tensor:
    """Right but for imaginary parts."""
    return backwards(x.real.to(x.dtype) if x.is_complex() else x)
