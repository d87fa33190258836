"""GELU's inputs and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..elementwise import Matrix
from .torch import manual


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return the matrix, standard normal."""
    return normal([problem.shape], problem.dtype, device, seed)


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the matrix."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(x: torch.Tensor) -> torch.Tensor:
    """Return GELU by its formula in float64, where the cube of float32's largest number is finite."""
    return manual(x.double())
