"""The inputs, and the right answer."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import normal

from . import Rows


def inputs(problem: Rows, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.rows, problem.columns), (problem.columns,)], problem.dtype, device, seed)


def outputs(problem: Rows) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows,), torch.float32)]


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.double() * w.double()).sum(-1)
