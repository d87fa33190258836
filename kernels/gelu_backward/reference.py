"""The inputs of GELU's backward pass and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..elementwise import Matrix
from .torch import formula


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return d_out and x, standard normal."""
    return normal([problem.shape, problem.shape], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the inputs."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(d_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient by the formula in float64."""
    return formula(d_out.double(), x.double())
