"""The inputs of attention's backward pass and its reference in float64."""

from __future__ import annotations

import math

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..attention.parameters import Problem
from ..attention.reference import CHUNK, hidden, scaled


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return q, k, v, out and d_out, standard normal, and lse, normal with a standard deviation of 0.1 around
    the average of a row that sees all keys: ``log(seq_k) + 0.5``."""
    q, k, v, out, d_out = normal([*problem.shapes, problem.shape, problem.shape], problem.dtype, device, seed)
    (lse,) = normal([problem.shape[:3]], "float32", device, seed + 1)
    return q, k, v, out, lse * 0.1 + (math.log(problem.seq_k) + 0.5), d_out


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shapes and dtypes of dq, dk and dv, which are like q, k and v."""
    return [(shape, dtype_of(problem.dtype)) for shape in problem.shapes]


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients by the formulas in float64, for the given out and lse."""
    dq = q.new_zeros(q.shape, dtype=torch.float64)
    dk, dv = (k.new_zeros(k.shape, dtype=torch.float64) for _ in range(2))
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    rows = max(1, CHUNK // max(1, k.shape[2]))
    for entry in range(q.shape[0]):
        for head in range(q.shape[1]):
            at = entry, head // group
            keys, values = k[at].double(), v[at].double()
            for top in range(0, q.shape[2], rows):
                some = entry, head, slice(top, top + rows)
                queries, given = q[some].double(), d_out[some].double()
                p = torch.exp(scaled(queries, keys) - lse[some].double()[:, None])
                if causal:
                    p[hidden(top, p.shape[0], q.shape[2], k.shape[2], q.device)] = 0.0
                delta = (out[some].double() * given).sum(1, keepdim=True)
                ds = p * (given @ values.mT - delta) * scale
                dv[at] += p.mT @ given
                dk[at] += ds.mT @ queries
                dq[some] = ds @ keys
    return dq, dk, dv
