"""Queries and keys, and their product."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Heads


def inputs(problem: Heads, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    shapes = [(problem.heads, problem.length), (problem.kv_heads, problem.length)]
    return normal(shapes, problem.dtype, device, seed)


def outputs(problem: Heads) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.heads, problem.length), dtype_of(problem.dtype))]


def reference(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    of_head = torch.arange(queries.shape[0]) * keys.shape[0] // queries.shape[0]
    return queries.double() * keys.double()[of_head]
