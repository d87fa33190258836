"""Inputs with weights that are dequantised before the call, for the product in 16 bits."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of

from .problem import Problem
from .reference import dequantised, unpack
from .reference import inputs as packed_inputs


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return x, and the weights in x's dtype, n by k."""
    x, packed, scales = packed_inputs(problem, device, seed)
    if device.type == "meta":
        return x, torch.empty((problem.n, problem.k), dtype=x.dtype, device=device)
    q = unpack(packed, problem.n, problem.k)
    return x, dequantised(q, scales, problem.granularity).to(dtype_of(problem.dtype))


def reference(x: torch.Tensor, w: torch.Tensor, granularity: str) -> torch.Tensor:
    """Return the product in float64."""
    del granularity
    return x.double() @ w.double().t()
