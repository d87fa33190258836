"""The rows, and the definition in float64."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Rows
from .torch import prefix


def inputs(problem: Rows, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([problem.shape], problem.dtype, device, seed)


def outputs(problem: Rows) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(x: torch.Tensor, mode: str, causal: bool) -> torch.Tensor:
    return prefix(x.double(), mode, causal)
