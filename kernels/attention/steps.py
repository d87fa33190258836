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

OF_BLOCK = 1
"""Steps that a block's first loads and its output take as long as."""

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
    """Return the steps of a fused kernel of torch, in steps of 128 keys. With a mask its longest blocks come
    last."""
    del parameters
    block_m, block_n = LIBRARY_TILE
    blocks = problem.batch * problem.heads * up_to(problem.seq_q, block_m)
    steps = up_to(problem.seq_k, block_n) * block_n / 128 * _weight(problem)
    if _skips(problem, block_m):
        return blocks * (_seen(problem, steps) + 1 / 2) / gpu.multiprocessors + steps + 1
    return waves(blocks, gpu) * (steps + 1 / 2) + 1


def split_steps(problem: Problem, split: Split, gpu: Gpu) -> float:
    """Return the steps of a kernel whose blocks share the keys. Blocks wait for memory, and two of them on a
    multiprocessor wait together."""
    blocks = problem.batch * problem.kv_heads * split.split_k
    steps = up_to(problem.seq_k, split.block_n * split.split_k)
    return max(1.0, blocks / gpu.multiprocessors / 2) * steps * _weight(problem) + START


def _steps(problem: Problem, heads: int, seq_q: int, tile: tuple[int, int], gpu: Gpu) -> float:
    blocks = problem.batch * heads * up_to(seq_q, tile[0])
    steps = up_to(problem.seq_k, tile[1]) * _weight(problem)
    busiest: float = waves(blocks, gpu) * (steps + OF_BLOCK)
    if _skips(problem, tile[0]):
        # Blocks are scheduled so that they end at about the same time.
        seen = _seen(problem, steps) + OF_BLOCK
        busiest = max(steps + OF_BLOCK, blocks * seen / gpu.multiprocessors)
    return busiest + START / 2


def _skips(problem: Problem, block_m: int) -> bool:
    """Whether the mask skips steps of some blocks of queries."""
    return problem.causal and problem.seq_q > block_m


def _seen(problem: Problem, steps: float) -> float:
    """Return the steps of a block on average, if the mask skips some. A step on the diagonal counts whole."""
    return steps * (1 - problem.seq_q / problem.seq_k / 2) + _weight(problem) / 2


def _weight(problem: Problem) -> float:
    """Return the time of a step, in steps of 128 columns."""
    return (tile_columns(problem.head_dim) + SOFTMAX) / (128 + SOFTMAX)
