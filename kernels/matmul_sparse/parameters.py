"""Declare the parameters of each provider of the sparse product, and check whether they fit a problem and a
GPU."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of

from .. import transposed_tiles
from ..transposed_tiles import Wgmma
from .problem import TILE_K, TILE_N, Problem


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The number of a cuSPARSELt kernel. The valid numbers depend on the problem."""

    alg_id: int = one_of(*range(10))


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A Triton program's block_m by block_n tile of the output, with block_k products per step."""

    block_m: int = one_of(16, 32, 64, 128, default=16, unit="")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    block_k: int = one_of(64, 128, default=128, unit="")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Warps:
    """The division of w among the warps of a CUDA block: ``tiles_n`` times 16 rows per warp, ``warps_k``
    warps that take turns along k, and ``split_k`` blocks along k."""

    tiles_n: int = one_of(1, 2, unit="")
    warps_k: int = one_of(4, 8, 16, default=8, unit="w")
    split_k: int = one_of(1, 2, 4, unit="k")


MOST_ROWS = 32
"""The maximum number of rows of x whose sums a CUDA block keeps."""

FEW_ROWS = 16
"""The maximum number of rows of x times tiles_n with which a CUDA block may have any number of warps."""


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program can't have these tiles or why smaller tiles are enough, or
    None."""
    for name, smallest in (("m", 16), ("n", 64), ("k", 128)):
        extent, block = getattr(problem, name), getattr(tiles, f"block_{name}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block is enough: block_{name} {block} > {enough} for {name} = {extent}"
    # A stage holds x, half of w in 16 bits, and a word of metadata for each four weights.
    needed = tiles.num_stages * tiles.block_k * (2 * tiles.block_m + 2 * tiles.block_n)
    if gpu is not None and needed > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes > {gpu.shared_memory}"
    return None


def cusparselt_fits(problem: Problem, parameters: Algorithm, gpu: Gpu | None) -> str | None:
    """Return the reason why cuSPARSELt can't compute the product, or None."""
    del parameters, gpu
    for name in ("m", "n", "k"):
        if (value := getattr(problem, name)) % 16 or (name != "m" and value % 32):
            return f"cuSPARSELt takes multiples of 16 for m and of 32 for n and k: {name} is {value}"
    return None


def warps_fit(problem: Problem, warps: Warps, gpu: Gpu | None) -> str | None:
    """Return the reason why a CUDA block can't compute the product with these warps, or None."""
    del gpu
    for name, multiple in (("n", TILE_N * warps.tiles_n), ("k", 2 * TILE_K)):
        if (value := getattr(problem, name)) % multiple:
            return f"{name} must be a multiple of {multiple}, not {value}"
    if problem.m > MOST_ROWS:
        return f"keeps the sums of all rows of x in registers: m {problem.m} > {MOST_ROWS}"
    if problem.m * warps.tiles_n > FEW_ROWS and warps.warps_k > 8:
        return (
            f"too much for the registers: tiles_n {warps.tiles_n} x warps_k {warps.warps_k} at m {problem.m}"
        )
    steps = problem.k // (2 * TILE_K)
    if warps.warps_k * warps.split_k > max(4, steps):
        return f"fewer warps are enough: warps_k {warps.warps_k} x split_k {warps.split_k} > {steps} steps"
    return None


def wgmma_fits(problem: Problem, tiles: Wgmma, gpu: Gpu | None) -> str | None:
    """Return the reason why Hopper's kernel can't have these tiles or why smaller tiles are enough, or
    None."""
    shape = problem.m, problem.n, problem.k
    return transposed_tiles.fits(shape, tiles, wgmma_bytes(tiles), gpu)


def wgmma_bytes(tiles: Wgmma) -> int:
    """Return the bytes of w in a block's step: 64 values in 16 bits per row, with 4 bits of metadata per
    two."""
    return tiles.block_n * (128 + 16)
