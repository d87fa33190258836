"""The steps of the backward pass's providers: what their times grow with.

A step multiplies 64 queries by a block of 128 keys, of a head_dim of 128, five times. The kernels before and
after the products go through the rows of the queries.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

from ..attention.parameters import Problem, tile_columns
from ..waves import START, up_to
from .parameters import Flash, WarpSpecialized

KEYS = 128
"""The keys of a block, and of a usual block in a library."""

SLOW_START = 2
"""Steps by which the Triton kernels take longer than their products, fitted to 96 and 192 queries on an
H200."""

ALONE = 80
"""A Triton program that is alone on a multiprocessor takes ``1 + ALONE / head_dim`` times its share of the
time that several take together, fitted to 32 heads on 2 and 4 key heads on an H200."""

ROWS = 4200
"""Elements of queries that a multiprocessor's share of the memory's rate moves in the time of a step."""


def cuda_steps(problem: Problem, tiles: WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of the CUDA C++ kernel, whose blocks keep keys and take a part of the queries. The
    gradients of parts are written and added."""
    of_keys = problem.group * up_to(problem.seq_q, tiles.block_m)
    of_part = up_to(of_keys, tiles.split)
    # The last of the ``split`` parts may have no tiles: 5 in 4 parts are 2, 2 and 1.
    parts = problem.kv_heads * up_to(of_keys, of_part)
    blocks = problem.batch * parts * up_to(problem.seq_k, KEYS)
    products = _busiest(problem, blocks, of_part, (KEYS, tiles.block_m), gpu)
    products *= tile_columns(problem.head_dim) / 128
    added = problem.batch * parts * problem.seq_k if tiles.split > 1 else 0
    return products + _all_rows(problem, gpu) + _rows(problem, gpu, added)


def triton_steps(problem: Problem, tiles: Flash, gpu: Gpu) -> float:
    """Return the steps of the Triton kernels: of keys with four products, and of queries with three."""
    tile = tiles.block, tiles.block_step
    alone = 1 + ALONE / problem.head_dim
    keys = _keys(problem, problem.kv_heads, tile, gpu, alone)
    blocks = problem.batch * problem.heads * up_to(problem.seq_q, tiles.block)
    queries = _busiest(problem, blocks, up_to(problem.seq_k, tiles.block_step), tile, gpu, alone)
    products = (4 * keys + 3 * queries) / 5 * problem.head_dim / 128
    return products + _all_rows(problem, gpu) + SLOW_START


def library_steps(problem: Problem, parameters: None, gpu: Gpu) -> float:
    """Return the steps of torch's kernel, whose blocks keep keys for one head of queries."""
    del parameters
    return _keys(problem, problem.heads, (KEYS, 64), gpu) * problem.head_dim / 128 + _all_rows(problem, gpu)


def _keys(problem: Problem, heads: int, tile: tuple[int, int], gpu: Gpu, alone: float = 1.0) -> float:
    """Return the steps of blocks that each keep keys of one of ``heads``, and take the queries of all heads
    that share them."""
    blocks = problem.batch * heads * up_to(problem.seq_k, tile[0])
    tiles = problem.heads // heads * up_to(problem.seq_q, tile[1])
    return _busiest(problem, blocks, tiles, tile, gpu, alone)


def _busiest(
    problem: Problem, blocks: int, tiles: int, tile: tuple[int, int], gpu: Gpu, alone: float = 1.0
) -> float:
    """Return the steps of the busiest multiprocessor, where a block takes at least ``alone`` times its steps.
    A mask skips half of the tiles, and the longest blocks come first, so that all end at about the same
    time."""
    each = tiles * tile[0] * tile[1] / (KEYS * 64)
    if problem.causal:
        return max(alone * each, blocks * (each / 2 + START / 4) / gpu.multiprocessors) + START / 4
    return max(alone * each + START / 4, up_to(blocks, gpu.multiprocessors) * (each + START / 4))


def _all_rows(problem: Problem, gpu: Gpu) -> float:
    """Return the steps of the kernels before and after the products, and of the launches."""
    return _rows(problem, gpu, problem.batch * problem.heads * problem.seq_q) + START


def _rows(problem: Problem, gpu: Gpu, rows: int) -> float:
    return rows * problem.head_dim / gpu.multiprocessors / ROWS
