"""The vector and its definition."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import normal

from . import Vector


def inputs(problem: Vector, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.elements,)], "float32", device, seed)


def outputs(problem: Vector) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.elements,), torch.float32)]


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.double()[torch.arange(x.numel() - 1, -1, -1)]
