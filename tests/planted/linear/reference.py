"""A linear layer's inputs and the right answer."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Linear


def inputs(problem: Linear, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    rows, columns = problem.rows, problem.columns
    return normal([(rows, columns), (columns, columns), (columns,)], problem.dtype, device, seed)


def outputs(problem: Linear) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.rows, problem.columns), dtype_of(problem.dtype))]


def reference(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return x.double() @ w.double().t() + bias.double()
