"""A provider that follows ``eps``, and a provider with an ``eps`` of its own."""

from __future__ import annotations

import torch


def scaled(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def fixed_eps(x: torch.Tensor, eps: float) -> torch.Tensor:
    del eps
    return scaled(x, 1e-6)
