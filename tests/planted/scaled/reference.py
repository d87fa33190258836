"""Seeded rows, and the right answer."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of

from . import Rows


def inputs(problem: Rows, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    shape, dtype = (problem.rows, problem.columns), dtype_of(problem.dtype)
    if device.type == "meta":
        return (torch.empty(shape, dtype=dtype, device=device),)
    return (torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype),)


def outputs(problem: Rows) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows, problem.columns), dtype_of(problem.dtype))]


def reference(x: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
