"""Attention's inputs and its reference in float64."""

from __future__ import annotations

import math

import torch

from kernel_pipeline.tensors import dtype_of, normal

from .parameters import Problem

CHUNK = 1 << 25
"""Scores that are held in float64 at a time, a quarter of a gigabyte."""


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return q, normal with a standard deviation of 2, and k and v, standard normal."""
    q, k, v = normal(problem.shapes, problem.dtype, device, seed)
    return 2 * q, k, v


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the output, which is like q."""
    return [(problem.shape, dtype_of(problem.dtype))]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by its definition, in float64."""
    out = q.new_empty(q.shape, dtype=torch.float64)
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
                out[some] = torch.softmax(scores, 1) @ values
    return out


def scaled(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return the scores of some queries of one head."""
    return torch.mm(q, keys.mT).mul_(1 / math.sqrt(q.shape[1]))


def hidden(top: int, rows: int, seq_q: int, seq_k: int, device: torch.device) -> torch.Tensor:
    """Return the mask of the keys that queries from index ``top`` on do not see."""
    query = torch.arange(top, top + rows, device=device)[:, None] + seq_k - seq_q
    return torch.arange(seq_k, device=device)[None, :] > query
