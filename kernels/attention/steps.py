"""The steps of attention's providers: what their times grow with.

A step multiplies a tile of queries by a tile of keys, and the scores by a tile of values. The products grow
with the head_dim; the softmax between them does not.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

from ..waves import START, up_to, waves
from .parameters import Flash, Hopper, Problem, Split, WarpSpecialized, tile_columns

SOFTMAX = 32
"""Columns of the head_dim whose products take as long as the softmax of a step."""

LIBRARY_TILE = 128, 64
"""A usual tile of queries and keys in a library."""


def tile_steps(problem: Problem, tiles: Flash | Hopper | WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of a kernel that takes tiles of the queries of a head."""
    return _steps(problem, problem.heads, problem.seq_q, (tiles.block_m, tiles.block_n), gpu)


def packed_steps(problem: Problem, tiles: WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of a kernel that takes tiles of the queries of all heads that share a key head."""
    queries = problem.group * problem.seq_q
    return _steps(problem, problem.kv_heads, queries, (tiles.block_m, tiles.block_n), gpu)


def library_steps(problem: Problem, parameters: None, gpu: Gpu) -> float:
    """Return the steps of a fused kernel of torch."""
    del parameters
    return _steps(problem, problem.heads, problem.seq_q, LIBRARY_TILE, gpu)


def split_steps(problem: Problem, split: Split, gpu: Gpu) -> float:
    """Return the steps of a kernel whose blocks share the keys. Blocks wait for memory, and two of them on a
    multiprocessor wait together."""
    blocks = problem.batch * problem.kv_heads * split.split_k
    steps = up_to(problem.seq_k, split.block_n * split.split_k)
    return max(1.0, blocks / gpu.multiprocessors / 2) * steps * _weight(problem) + START


def _steps(problem: Problem, heads: int, seq_q: int, tile: tuple[int, int], gpu: Gpu) -> float:
    blocks = problem.batch * heads * up_to(seq_q, tile[0])
    steps = up_to(problem.seq_k, tile[1])
    busiest: float = waves(blocks, gpu) * steps
    if problem.causal and problem.seq_q > tile[0]:
        # Blocks that skip steps because of the mask are scheduled so that they end at about the same time.
        seen = 1 - problem.seq_q / problem.seq_k / 2
        busiest = max(steps, blocks * steps * seen / gpu.multiprocessors)
    return busiest * _weight(problem) + START / 2


def _weight(problem: Problem) -> float:
    """Return the time of a step, in steps of 128 columns."""
    return (tile_columns(problem.head_dim) + SOFTMAX) / (128 + SOFTMAX)
