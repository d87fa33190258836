"""Sparsify's inputs and its right answer."""

from __future__ import annotations

import torch

from kernel_pipeline.tensors import dtype_of, normal

from ..matmul_sparse.problem import TILE_K, up
from ..matmul_sparse.reference import pack
from . import Problem


def inputs(problem: Problem, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """w, standard normal."""
    return normal([(problem.n, problem.k)], problem.dtype, device, seed)


def outputs(problem: Problem) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """A matrix like w, or values and metadata."""
    dtype = dtype_of(problem.dtype)
    if problem.step == "prune":
        return [((problem.n, problem.k), dtype)]
    return [(problem.values_shape, dtype), (problem.metadata_shape, torch.int32)]


def filled_up(w: torch.Tensor) -> torch.Tensor:
    """Rows with zeros up to a multiple of 64, as groups of four neighbours."""
    rows, columns = w.shape
    return torch.nn.functional.pad(w, (0, up(columns, TILE_K) - columns)).view(rows, -1, 4)


def reference(w: torch.Tensor, step: str) -> tuple[torch.Tensor, ...]:
    """The kept values, exactly."""
    of = w.t() if step == "transpose" else w
    four = filled_up(of.double())
    # Of equal values the first one wins; the two places stay in order.
    order = four.abs().sort(dim=2, descending=True, stable=True).indices
    places = order[..., :2].sort(dim=2).values
    kept = four.gather(2, places)
    if step == "prune":
        made = torch.zeros_like(four).scatter_(2, places, kept)
        return (made.view(made.shape[0], -1)[:, : of.shape[1]],)
    # As int64, which is no output's dtype: the verifier converts the answer to that dtype and negates it in
    # place, to poison the output's memory.
    return kept.view(kept.shape[0], -1), pack((places[..., 0] + 4 * places[..., 1]).int()).long()
