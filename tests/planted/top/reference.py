"""Rows with many ties in bfloat16, their largest elements, and what is right of these."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from . import Rows


def inputs(problem: Rows, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    return normal([(problem.rows, problem.columns)], problem.dtype, device, seed)


def outputs(problem: Rows) -> list[tuple[tuple[int, ...], torch.dtype]]:
    shape = (problem.rows, problem.largest)
    return [(shape, dtype_of(problem.dtype)), (shape, torch.int64)]


def reference(x: torch.Tensor, largest: int) -> torch.Tensor:
    return x.topk(largest, dim=1).values


def compare(
    problem: Rows,
    inputs: tuple[torch.Tensor, ...],
    outputs: tuple[torch.Tensor, ...],
    reference: tuple[torch.Tensor, ...],
) -> str | None:
    (x,), (values, places), (right,) = inputs, outputs, reference
    if not torch.equal(values, right):
        return "these are not the largest values"
    if bool(((places < 0) | (places >= problem.columns)).any()):
        return "some places are outside of a row"
    if not torch.equal(x.gather(1, places), values):
        return "some places hold other values"
    if bool((places.sort(dim=1).values.diff(dim=1) == 0).any()):
        return "some places are named twice"
    return None
