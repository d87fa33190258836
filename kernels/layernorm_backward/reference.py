"""The inputs of layer normalization's backward pass and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..rows import Matrix
from .torch import formula


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return d_out, x and the weight, standard normal."""
    return normal([problem.shape, problem.shape, (problem.columns,)], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and dtypes of d_x, d_weight and d_bias, which are like x and weight."""
    of_columns = (problem.columns,)
    return [(shape, dtype_of(problem.dtype)) for shape in (problem.shape, of_columns, of_columns)]


def reference(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the gradients by the formulas in float64."""
    return formula(d_out.double(), x.double(), weight.double())
