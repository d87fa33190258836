"""Inputs with dense weights, which include the zeros, for the dense product."""

from __future__ import annotations

import torch

from .problem import Problem
from .reference import dense
from .reference import inputs as sparse_inputs


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, and w, n by k."""
    x, values, metadata = sparse_inputs(problem, device, seed)
    if device.type == "meta":
        return x, torch.empty((problem.n, problem.k), dtype=x.dtype, device=device)
    return x, dense(values, metadata)[:, : problem.k].contiguous()


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the product in float64."""
    return x.double() @ w.double().t()
