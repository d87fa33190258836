"""The matrix product's inputs and its right answer."""

from __future__ import annotations

import torch

from kernels.matmul import Problem
from kernels.tensors import dtype_of, normal

CHUNK = 1 << 26
"""Elements of a that are made float64 at a time, half a gigabyte, so that only b and the answer are there
whole."""


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Both matrices, row-major, standard normal."""
    return normal(problem.shapes, problem.dtype, device, seed)


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """One m by n matrix of the inputs' dtype."""
    return [((problem.m, problem.n), dtype_of(problem.dtype))]


def reference(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> torch.Tensor:
    """The product in float64, whatever arithmetic is asked of the providers."""
    del arithmetic
    wide = b.double()
    out = wide.new_empty((a.shape[0], b.shape[1]))
    rows = max(1, CHUNK // max(1, a.shape[1]))
    for top in range(0, a.shape[0], rows):
        torch.mm(a[top : top + rows].double(), wide, out=out[top : top + rows])
    return out
