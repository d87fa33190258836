"""The steps of the backward pass's providers: what their times grow with.

A step multiplies 64 queries by a block of 128 keys, of a head_dim of 128, five times. The kernels before and
after the products go through the rows of the queries.
"""

from __future__ import annotations

from kernel_pipeline.contract import Gpu

from ..attention.parameters import Problem
from ..waves import START, up_to
from .parameters import Flash, WarpSpecialized
from .parts import KEYS, busiest, part_steps, parts, rows_steps

SLOW_START = 2
"""Steps by which the Triton kernels take longer than their products, fitted to 96 and 192 queries on an
H200."""

ALONE = 80
"""A Triton program that is alone on a multiprocessor takes ``1 + ALONE / head_dim`` times its share of the
time that several take together, fitted to 32 heads on 2 and 4 key heads on an H200."""


def cuda_steps(problem: Problem, tiles: WarpSpecialized, gpu: Gpu) -> float:
    """Return the steps of the CUDA C++ kernel, whose blocks keep keys and take a part of the queries."""
    split = tiles.split or parts(problem, tiles.block_m, tiles.deterministic, gpu.multiprocessors)
    return part_steps(problem, tiles.block_m, split, gpu.multiprocessors) + _all_rows(problem, gpu)


def triton_steps(problem: Problem, tiles: Flash, gpu: Gpu) -> float:
    """Return the steps of the Triton kernels: of keys with four products, and of queries with three."""
    tile = tiles.block, tiles.block_step
    alone = 1 + ALONE / problem.head_dim
    keys = _keys(problem, problem.kv_heads, tile, gpu, alone)
    blocks = problem.batch * problem.heads * up_to(problem.seq_q, tiles.block)
    each = _in_steps(up_to(problem.seq_k, tiles.block_step), tile)
    queries = busiest(blocks, each, problem.causal, gpu.multiprocessors, alone)
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
    each = _in_steps(problem.heads // heads * up_to(problem.seq_q, tile[1]), tile)
    return busiest(blocks, each, problem.causal, gpu.multiprocessors, alone)


def _in_steps(tiles: int, tile: tuple[int, int]) -> float:
    return tiles * tile[0] * tile[1] / (KEYS * 64)


def _all_rows(problem: Problem, gpu: Gpu) -> float:
    """Return the steps of the kernels before and after the products, and of the launches."""
    elements = problem.batch * problem.heads * problem.seq_q * problem.head_dim
    return rows_steps(elements, gpu.multiprocessors) + START
