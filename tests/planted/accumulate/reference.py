"""Two vectors, and what the first comes to."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    shape = (problem.elements,)
    both = normal([shape, shape], "float32", device, seed)
    return both if problem.dtype == "float32" else tuple((100 * x).to(torch.int32) for x in both)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.elements,), dtype_of(problem.dtype))]


def reference(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return total.double() + x.double()
