"""The inputs of RMS normalization's backward pass and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..rmsnorm import EPS
from ..rows import Matrix


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return d_out, x and the weight, standard normal."""
    return normal([problem.shape, problem.shape, (problem.columns,)], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and dtypes of d_x and d_weight, which are like x and weight."""
    return [(shape, dtype_of(problem.dtype)) for shape in (problem.shape, (problem.columns,))]


def reference(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients by the formulas in float64."""
    wide, given = x.double(), d_out.double()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS)
    normalized = wide * scale
    scaled = given * weight.double()
    d_x = scale * (scaled - normalized * (scaled * normalized).mean(dim=-1, keepdim=True))
    return d_x, (given * normalized).sum(dim=0)
