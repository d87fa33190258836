"""The inputs of the sum of two vectors and its right answer."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Vectors


def inputs(problem: Vectors, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Both vectors, standard normal."""
    return normal([(problem.elements,)] * 2, problem.dtype, device, seed)


def outputs(problem: Vectors) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """A vector like them."""
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum in float64."""
    return x.double() + y.double()
