"""The steps of attention's providers: what their times grow with.

A step multiplies a tile of queries by a tile of keys, and the scores by a tile of values. The products grow
with the head_dim; the softmax between them does not.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

from ..waves import START, up_to, waves
from .parameters import Flash, Hopper, Problem, Split, WarpSpecialized

SOFTMAX = 32
"""Columns of the head_dim whose products take as long as the softmax of a step."""

OF_BLOCK = 1
"""Steps that a block's first loads and its output take as long as."""

LAUNCH = 2
"""Steps that the launch takes as long as."""

LIBRARY_TILE = 128, 64
"""A usual tile of queries and keys in a library."""

LIBRARY_BLOCK, LIBRARY_LAUNCH = 1 / 2, 1
"""What a block and the launch of torch's kernel take, in its steps of 128 keys. These two were fitted to 60
times on an H200, as ``OF_BLOCK`` and ``LAUNCH`` were to 128 of ``cuda_flash``."""


def tile_steps(problem: Problem, tiles: Flash | Hopper | WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of a kernel that takes tiles of the queries of a head. With a mask its blocks are
    scheduled so that they end at about the same time."""
    blocks = problem.batch * problem.heads * up_to(problem.seq_q, tiles.block_m)
    shortest, seen, longest = (
        steps + OF_BLOCK for steps in _steps(problem, (tiles.block_m, tiles.block_n), tiles.block_n)
    )
    return max(longest, blocks * seen / gpu.multiprocessors, waves(blocks, gpu) * shortest) + LAUNCH


def packed_steps(problem: Problem, tiles: WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of a kernel that takes tiles of the queries of all heads that share a key head. They
    are shared evenly. With a mask a tile with queries of two heads takes all keys of a head."""
    rows, every = problem.group * problem.seq_q, []
    for row in range(0, rows, tiles.block_m):
        last = row % problem.seq_q + tiles.block_m
        is_of_one_head = last <= problem.seq_q or row // problem.seq_q == problem.group - 1
        sees = problem.seq_k
        if problem.causal and is_of_one_head:
            sees = min(sees, last + problem.seq_k - problem.seq_q)
        every.append(up_to(sees, tiles.block_n) * _weight(problem) + OF_BLOCK)
    blocks = problem.batch * problem.kv_heads * len(every)
    return max(*every, waves(blocks, gpu) * sum(every) / len(every)) + LAUNCH


def library_steps(problem: Problem, parameters: None, gpu: Gpu) -> float:
    """Return the steps of a fused kernel of torch, in steps of 128 keys. With a mask its longest blocks come
    last."""
    del parameters
    blocks = problem.batch * problem.heads * up_to(problem.seq_q, LIBRARY_TILE[0])
    shortest, seen, longest = (steps + LIBRARY_BLOCK for steps in _steps(problem, LIBRARY_TILE, 128))
    last = longest - LIBRARY_BLOCK if shortest < longest else 0.0
    return max(blocks * seen / gpu.multiprocessors + last, waves(blocks, gpu) * shortest) + LIBRARY_LAUNCH


def split_steps(problem: Problem, split: Split, gpu: Gpu) -> float:
    """Return the steps of a kernel whose blocks share the keys. Blocks wait for memory, and two of them on a
    multiprocessor wait together."""
    blocks = problem.batch * problem.kv_heads * split.split_k
    steps = up_to(problem.seq_k, split.block_n * split.split_k)
    return max(1.0, blocks / gpu.multiprocessors / 2) * steps * _weight(problem) + START


def _steps(problem: Problem, tile: tuple[int, int], keys: int) -> tuple[float, float, float]:
    """Return the steps of the shortest block, of a block on average, and of the longest, in steps of
    ``keys``. They differ if the mask skips steps of some blocks."""
    block_m, block_n = tile
    weight = _weight(problem) * block_n / keys
    every = up_to(problem.seq_k, block_n) * weight
    if not problem.causal or problem.seq_q <= block_m:
        return every, every, every
    shortest = up_to(problem.seq_k - problem.seq_q + block_m, block_n) * weight
    # A step on the diagonal counts whole.
    seen = every * (1 - problem.seq_q / problem.seq_k / 2) + _weight(problem) / 2
    return shortest, min(seen, every), every


def _weight(problem: Problem) -> float:
    """Return the time of a step, in steps of 128 columns."""
    return (problem.head_dim + SOFTMAX) / (128 + SOFTMAX)
