"""The inputs of the sum of two vectors and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Vectors


def inputs(problem: Vectors, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return both vectors, standard normal."""
    return normal([(problem.elements,)] * 2, problem.dtype, device, seed)


def outputs(problem: Vectors) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the inputs."""
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sum in float64."""
    return x.double() + y.double()
