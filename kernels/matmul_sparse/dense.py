"""The weights with their zeros, for the dense product."""

from __future__ import annotations

import torch

from kernels.matmul_sparse.problem import Problem
from kernels.matmul_sparse.reference import dense
from kernels.matmul_sparse.reference import inputs as sparse_inputs


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """x, and w, n by k."""
    x, values, metadata = sparse_inputs(problem, device, seed)
    if device.type == "meta":
        return x, torch.empty((problem.n, problem.k), dtype=x.dtype, device=device)
    return x, dense(values, metadata)[:, : problem.k].contiguous()


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The product in float64."""
    return x.double() @ w.double().t()
