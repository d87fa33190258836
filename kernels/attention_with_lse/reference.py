"""The reference of attention with the logarithms of its rows' sums, in float64."""

from __future__ import annotations

import math

import torch

from kernel_pipeline.tensors import dtype_of

from ..attention.parameters import Problem
from ..attention.reference import CHUNK, hidden, inputs, scaled

__all__ = ["inputs", "outputs", "reference"]


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and dtypes of the output, which is like q, and of lse."""
    return [(problem.shape, dtype_of(problem.dtype)), (problem.shape[:3], torch.float32)]


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and lse by their definitions, in float64."""
    out = q.new_empty(q.shape, dtype=torch.float64)
    lse = q.new_empty(q.shape[:3], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    rows = max(1, CHUNK // max(1, k.shape[2]))
    for entry in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[entry, head // group].double(), v[entry, head // group].double()
            for top in range(0, q.shape[2], rows):
                some = entry, head, slice(top, top + rows)
                scores = scaled(q[some].double(), keys)
                if causal:
                    scores[hidden(top, scores.shape[0], q.shape[2], k.shape[2], q.device)] = -math.inf
                lse[some] = torch.logsumexp(scores, 1)
                out[some] = torch.softmax(scores, 1) @ values
    return out, lse
