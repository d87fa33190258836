"""Dropout's input, and a test of its output's distribution."""

from __future__ import annotations

import torch

from kernel_pipeline.chance import RARE, chi_squared
from kernel_pipeline.tensors import dtype_of, normal

from . import Dropout

Tensors = tuple[torch.Tensor, ...]


def inputs(problem: Dropout, device: torch.device, seed: int) -> Tensors:
    return normal([(problem.n,)], problem.dtype, device, seed)


def outputs(problem: Dropout) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [((problem.n,), dtype_of(problem.dtype))]


def reference(x: torch.Tensor, p: float) -> torch.Tensor:
    return x.double() / (1 - p)


def compare(problem: Dropout, inputs: Tensors, outputs: Tensors, reference: Tensors) -> str | None:
    """Test that elements are zero or scaled, and how often pairs of neighbours are zero."""
    del inputs
    (calls,), (scaled,) = outputs, reference
    kept, p = calls != 0, problem.p
    wrong = (calls - scaled).abs() > 1e-6 * scaled.abs()
    if bool((kept & wrong).any()):
        return f"{int((kept & wrong).sum())} elements are neither 0 nor x / (1 - p)"
    pairs = (2 * kept[:, :-1:2].long() + kept[:, 1::2].long()).flatten().bincount(minlength=4)
    if chi_squared(pairs, [p * p, p * (1 - p), (1 - p) * p, (1 - p) ** 2]) < RARE:
        share = float((~kept).double().mean())
        return f"{share:.2%} of the elements are zero, not {p:.2%}, or not independently"
    return None
