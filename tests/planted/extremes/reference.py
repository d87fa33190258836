"""The rows; their reach in float64 and their places exactly."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import normal

from . import Rows


def inputs(problem: Rows, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.rows, problem.columns)], problem.dtype, device, seed)


def outputs(problem: Rows) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows,), torch.bfloat16), ((problem.rows, 2), torch.int32)]


def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    reach = x.double().amax(dim=1) - x.double().amin(dim=1)
    return reach, torch.stack([x.argmin(dim=1), x.argmax(dim=1)], dim=1)
