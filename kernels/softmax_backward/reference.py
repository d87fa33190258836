"""The inputs of softmax's backward pass and its reference in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..rows import Matrix
from .torch import formula


def inputs(problem: Matrix, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return d_out, standard normal, and out: exponentials of standard normal numbers, divided by their
    expected sum over a row."""
    d_out, x = normal([problem.shape, problem.shape], "float32", device, seed)
    out = torch.exp(x - 0.5) / problem.columns
    return tuple(one.to(dtype_of(problem.dtype)) for one in (d_out, out))


def outputs(problem: Matrix) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like the inputs."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return the gradient by the formula in float64."""
    return formula(d_out.double(), out.double())
