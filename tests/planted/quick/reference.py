"""A vector's inputs, and twice of it."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.elements,)], problem.dtype, device, seed)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2
