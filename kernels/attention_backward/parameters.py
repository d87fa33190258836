"""The parameters of the backward pass's providers, and what fits. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of

from ..attention.parameters import Problem, refused, too_large, too_much_shared, uneven
from .parts import parts_with_tiles, tiles_of_keys

MAX_ACCUMULATORS = 192
"""The maximum number of float32 scores and sums that a thread may keep; with more it spills."""


@dataclass(frozen=True, kw_only=True)
class Flash:
    """The keys, or the queries, that a program keeps (``block``), and the queries, or the keys, that it takes
    per step (``block_step``)."""

    block: int = one_of(32, 64, 128, default=128, unit="")
    block_step: int = one_of(32, 64, 128, default=64, unit="")
    num_warps: int = one_of(2, 4, 8, default=8, unit="w")
    num_stages: int = one_of(1, 2, 3, default=2, unit="s")


WIDE_TILES = ((64, 2), (64, 3), (80, 2))
CUDA_TILES = {64: ((128, 2),), 96: WIDE_TILES, 128: WIDE_TILES}
"""The tiles that ``flash.cu`` has, as (block_m, stages), by head_dim. A block has 128 keys. A tile's dq has
two parts, one for each warpgroup: 64 by 64, or, of 80 queries, 64 columns each. With 96 columns a quarter of
each product multiplies zeros. A head_dim of 256 does not fit: dk and dv of 128 keys would take 256 registers
per thread, and there are 240."""


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized:
    """The queries of a tile, the stages of the buffer for queries and d_out, whether blocks add their parts
    of dq in turns, so that the sums are the same at every call (``deterministic``), and the number of parts
    of a block of keys (``split``), each with its share of the tiles of queries; 0 leaves it to ``parts``."""

    block_m: int = one_of(64, 80, 128, default=64, unit="")
    stages: int = one_of(2, 3, default=2, unit="s")
    deterministic: bool = one_of(False, True, omit_default=True)
    split: int = one_of(0, 1, 2, 3, 4, 8, 16, unit="p", omit_default=True)


def flash_fits(problem: Problem, tiles: Flash, gpu: Gpu | None) -> str | None:
    """Return the reason why these tiles don't fit or are larger than needed, or None."""
    if reason := refused(problem) or uneven(problem):
        return reason
    for name in ("block", "block_step"):
        shorter = min(problem.seq_q, problem.seq_k)
        if reason := too_large(name, getattr(tiles, name), shorter, 64):
            return reason
    if tiles.block < 16 * tiles.num_warps:
        return f"a warp takes 16 rows: {tiles.num_warps} warps > {tiles.block} / 16"
    # A thread keeps two sums of the block, and a step's scores and their gradients.
    kept = 2 * tiles.block * (problem.head_dim + tiles.block_step) // (32 * tiles.num_warps)
    if kept > MAX_ACCUMULATORS:
        return f"too much for the registers: {kept} scores and sums per thread > {MAX_ACCUMULATORS}"
    staged = 2 * tiles.block + 2 * tiles.num_stages * tiles.block_step
    step = 2 * tiles.block * tiles.block_step
    return too_much_shared(2 * problem.head_dim * staged + step, tiles.num_stages, gpu)


def warp_specialized_fits(problem: Problem, tiles: WarpSpecialized, gpu: Gpu | None) -> str | None:
    """Return the reason why the CUDA C++ kernel, which has fixed tiles for each head_dim, does not have these
    tiles, or why the queries that share keys don't make so many parts, or None."""
    del gpu
    if reason := refused(problem):
        return reason
    have = CUDA_TILES[problem.head_dim]
    if (tiles.block_m, tiles.stages) not in have:
        names = " and ".join(f"{m} x {n}s" for m, n in have)
        return f"its queries and stages for a head_dim of {problem.head_dim} are {names}"
    if tiles.deterministic and tiles.split and problem.group % tiles.split:
        # With a mask blocks of keys have different steps, and a part could wait for one that comes later.
        return f"{problem.group} heads share a key head: they don't make {tiles.split} equal parts"
    of_keys = tiles_of_keys(problem, tiles.block_m)
    if tiles.split and (parts := parts_with_tiles(of_keys, tiles.split)) < tiles.split:
        return f"{of_keys} tiles of queries share keys: they make {parts} parts, not {tiles.split}"
    return None
