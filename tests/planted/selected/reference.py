"""A vector, and its positive elements with their places."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import normal

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.elements,)], "float32", device, seed)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.elements,), torch.float32), ((problem.elements,), torch.int64)]


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[x > 0].double(), torch.arange(len(x), device=x.device)[x > 0]
