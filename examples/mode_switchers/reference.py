"""A vector as the input, and twice the vector in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return a vector, standard normal."""
    return normal([(problem.elements,)], problem.dtype, device, seed)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the one output, which is like x."""
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor) -> torch.Tensor:
    """Return twice x in float64."""
    return x.double() * 2
