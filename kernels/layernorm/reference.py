"""Layer normalization's inputs and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..rows import Matrix
from . import EPS


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the matrix, the weight and the bias, standard normal."""
    of_columns = (problem.columns,)
    return normal([problem.shape, of_columns, of_columns], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the matrix."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return layer normalization by its definition, in float64."""
    wide = x.double()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    scale = torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + EPS)
    return centered * scale * weight.double() + bias.double()
