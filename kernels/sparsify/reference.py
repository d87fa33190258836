"""Sparsify's inputs and its reference."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..matmul_sparse.problem import TILE_K, up
from ..matmul_sparse.reference import pack
from . import Problem


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """Return w, standard normal."""
    return normal([(problem.n, problem.k)], problem.dtype, device, seed)


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of the pruned matrix, or of values and metadata."""
    dtype = dtype_of(problem.dtype)
    if problem.step == "prune":
        return [((problem.n, problem.k), dtype)]
    return [(problem.values_shape, dtype), (problem.metadata_shape, torch.int32)]


def filled_up(w: torch.Tensor) -> torch.Tensor:
    """Return the rows as groups of four neighbours, padded with zeros to a multiple of 64 columns."""
    rows, columns = w.shape
    return torch.nn.functional.pad(w, (0, up(columns, TILE_K) - columns)).view(rows, -1, 4)


def reference(w: torch.Tensor, step: str) -> tuple[torch.Tensor, ...]:
    """Return the pruned matrix, or values and metadata; kept values are exact."""
    of = w.t() if step == "transpose" else w
    four = filled_up(of.double())
    # The first of equal values wins; the two places stay in order.
    order = four.abs().sort(dim=2, descending=True, stable=True).indices
    places = order[..., :2].sort(dim=2).values
    kept = four.gather(2, places)
    if step == "prune":
        made = torch.zeros_like(four).scatter_(2, places, kept)
        return (made.view(made.shape[0], -1)[:, : of.shape[1]],)
    # int64 is the dtype in which the verifier compares integers.
    return kept.view(kept.shape[0], -1), pack((places[..., 0] + 4 * places[..., 1]).int()).long()
