"""Groups of rows with their weights, and the definition in float64."""

from __future__ import annotations

from typing import Any

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Groups
from .torch import products


def inputs(problem: Groups, device: torch.device, seed: int) -> dict[str, Any]:
    groups = len(problem.m)
    shapes = [*((rows, problem.k) for rows in problem.m), *[(problem.k, problem.n)] * groups, (problem.n,)]
    made = normal(shapes, problem.dtype, device, seed)
    return {
        "weights": list(made[groups : 2 * groups]),
        "rows": list(made[:groups]),
        "bias": made[-1] if problem.biased else None,
    }


def outputs(problem: Groups) -> list[Any]:
    dtype = dtype_of(problem.dtype)
    return [[((rows, problem.n), dtype) for rows in problem.m], ((len(problem.m),), dtype)]


def reference(
    rows: list[torch.Tensor], weights: list[torch.Tensor], bias: torch.Tensor | None, m: tuple[int, ...]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    assert m == tuple(len(one) for one in rows)
    wide = None if bias is None else bias.double()
    return products(rows=[x.double() for x in rows], weights=[w.double() for w in weights], bias=wide, m=m)
