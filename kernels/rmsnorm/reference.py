"""RMS normalization's inputs and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..rows import Matrix
from . import EPS


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the matrix and the weight, standard normal."""
    return normal([problem.shape, (problem.columns,)], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the matrix."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return RMS normalization by its definition, in float64."""
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + EPS) * weight.double()
