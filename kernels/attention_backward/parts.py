"""The number of parts of a block of keys in the CUDA C++ kernel. Imports no torch.

The steps of a block of keys are the tiles of queries that see it, of all heads that share the keys. Each part
of these steps is a block of threads of its own.
"""

from __future__ import annotations

from functools import lru_cache

from ..attention.parameters import Problem, tile_columns
from ..waves import START, up_to

KEYS = 128
"""The keys of a block, and of a usual block in a library."""

MOST_PARTS = 16

ROWS = 4200
"""Elements of rows that a multiprocessor's share of the memory's rate moves in the time of a step."""

NEAR = 1.02
"""Numbers of parts whose steps differ by less than this ratio count as equal; fewer parts are chosen."""

UNEVEN = 0.3
"""The share of a block's steps by which multiprocessors end apart with a mask, fitted to 64 heads on 8 and 32
heads on 2 and 4 key heads on an H200."""


@lru_cache(maxsize=4096)
def parts(problem: Problem, block_m: int, deterministic: bool, multiprocessors: int) -> int:
    """Return the number of parts that is predicted to be fastest, or fewer that are ``NEAR``. With
    ``deterministic`` a part has whole heads."""
    tiles = tiles_of_keys(problem, block_m)
    steps: dict[int, float] = {}
    for split in range(1, MOST_PARTS + 1):
        if parts_with_tiles(tiles, split) == split and not (deterministic and problem.group % split):
            uneven = UNEVEN * in_steps(up_to(tiles, split), block_m) if problem.causal else 0.0
            steps[split] = part_steps(problem, block_m, split, multiprocessors) + uneven
    return next(split for split, of_split in steps.items() if of_split <= NEAR * min(steps.values()))


def tiles_of_keys(problem: Problem, block_m: int) -> int:
    """Return the most tiles of ``block_m`` queries that see a block of keys."""
    return problem.group * up_to(problem.seq_q, block_m)


def parts_with_tiles(tiles: int, split: int) -> int:
    """Return how many of ``split`` parts have tiles: 5 tiles in 4 parts are 2, 2 and 1."""
    return up_to(tiles, up_to(tiles, split))


def in_steps(tiles: int, block_m: int) -> float:
    """Return the steps, of 64 queries by 128 keys, of tiles of ``block_m`` queries."""
    return tiles * block_m / 64


def part_steps(problem: Problem, block_m: int, split: int, multiprocessors: int) -> float:
    """Return the steps of the busiest multiprocessor, and of adding the parts of dk and dv."""
    of_head = problem.batch * problem.kv_heads * split
    each = in_steps(up_to(tiles_of_keys(problem, block_m), split), block_m)
    steps = busiest(of_head * up_to(problem.seq_k, KEYS), each, problem.causal, multiprocessors)
    added = of_head * problem.seq_k * problem.head_dim if split > 1 else 0
    return steps * tile_columns(problem.head_dim) / 128 + rows_steps(added, multiprocessors)


def busiest(blocks: int, each: float, causal: bool, multiprocessors: int, alone: float = 1.0) -> float:
    """Return the steps of the busiest multiprocessor, where a block has ``each`` steps and takes at least
    ``alone`` times as long. A mask skips half of the tiles, and the longest blocks come first, so that all
    end at about the same time."""
    if causal:
        return max(alone * each, blocks * (each / 2 + START / 4) / multiprocessors) + START / 4
    return max(alone * each + START / 4, up_to(blocks, multiprocessors) * (each + START / 4))


def rows_steps(elements: int, multiprocessors: int) -> float:
    """Return the steps in which the kernels before and after the products go through rows."""
    return elements / multiprocessors / ROWS
