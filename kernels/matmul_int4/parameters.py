"""Declare the parameters of each provider of the four-bit product, and check whether they fit a problem and a
GPU."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of

from .. import transposed_tiles
from ..transposed_tiles import MOST_SUMS, Wgmma
from .problem import TILE_K, Problem, up


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A Triton program's block_m by block_n tile of the output, with block_k products per step."""

    block_m: int = one_of(16, 32, 64, 128, 256, default=16, unit="")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    block_k: int = one_of(128, 256, unit="")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Split(Tiles):
    """The tiles of a Triton program, with k divided among ``split_k`` programs."""

    split_k: int = one_of(2, 4, 8, 16, default=4, unit="k")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of w (block_n) that a program multiplies with one row of x, block_k products per step."""

    block_n: int = one_of(8, 16, 32, default=16, unit="")
    block_k: int = one_of(256, 512, 1024, default=512, unit="")
    num_warps: int = one_of(1, 2, 4, 8, default=4, unit="w")


@dataclass(frozen=True, kw_only=True)
class Warps:
    """The division of w among the warps of a CUDA block: ``tiles_n`` times 16 rows per warp, ``warps_k``
    warps along k, and ``split_k`` blocks along k."""

    tiles_n: int = one_of(1, 2, default=2, unit="")
    warps_k: int = one_of(4, 8, 16, default=8, unit="w")
    split_k: int = one_of(1, 2, 4, unit="k")


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The warps of a program that dequantises a tile."""

    num_warps: int = one_of(4, 8, unit="w")


ROWS_OF_X = (64, 96, 112, 128, 160, 192, 224, 240)


@dataclass(frozen=True, kw_only=True)
class StreamK:
    """A block's tile of ``block_m`` rows of x, up to 128 by 256 rows of w and more by 128. The blocks share
    the steps of all tiles."""

    block_m: int = one_of(*ROWS_OF_X, default=128, unit="")

    @property
    def block_n(self) -> int:
        """The rows of w in a tile."""
        return 256 if self.block_m <= 128 else 128


LEAST_OF_WARP = 256
"""The minimum number of sums per warp of a Triton program: two of the tensor cores' 16 x 8 tiles."""

MOST_ROWS = {"triton_gemv": 4, "cuda": 32}
"""The maximum number of rows of x, by provider: these read all of w again for every few rows."""


MOST_ROWS_OF_CLUSTERS = 32
"""The maximum number of rows of x that ``cuda_stream_k`` leaves to the smaller tiles of ``cuda_wgmma``."""

FEW_ROWS = 16
"""The maximum number of rows of x with which a CUDA block may have any number of warps and tiles."""


def whole_tiles(problem: Problem) -> str | None:
    """Return the reason why a kernel without masks can't take these weights, or None."""
    for name, multiple in (("n", 16), ("k", TILE_K)):
        if getattr(problem, name) % multiple:
            return f"{name} must be a multiple of {multiple}, not {getattr(problem, name)}"
    return None


def tiles_fit(problem: Problem, tiles: Tiles, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program can't have these tiles or why smaller tiles are enough, or
    None."""
    for name, smallest in (("m", 16), ("n", 64), ("k", TILE_K)):
        extent, block = getattr(problem, name), getattr(tiles, f"block_{name}")
        if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
            return f"a smaller block is enough: block_{name} {block} > {enough} for {name} = {extent}"
    sums = tiles.block_m * tiles.block_n // (32 * tiles.num_warps)
    if sums > MOST_SUMS:
        return f"too much for the registers: {sums} sums per thread > {MOST_SUMS}"
    # With tiles of 16 x 64 and 8 warps, 347 of 4096 x 8192 sums were wrong on an H100 (Triton 3.6).
    if tiles.block_m * tiles.block_n < LEAST_OF_WARP * tiles.num_warps:
        return f"too many warps: {tiles.num_warps} for a tile of {tiles.block_m} x {tiles.block_n}"
    # A stage holds x in 16 bits, w in four, and a scale with its zero for each word of eight weights.
    needed = tiles.num_stages * tiles.block_k * (2 * tiles.block_m + tiles.block_n)
    if gpu is not None and needed > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes > {gpu.shared_memory}"
    return None


def split_fits(problem: Problem, tiles: Split, gpu: Gpu | None) -> str | None:
    """Return the reason why a product can't be split like this, or None."""
    if reason := tiles_fit(problem, tiles, gpu):
        return reason
    steps = up(problem.k, tiles.block_k) // tiles.block_k
    if tiles.split_k > max(steps, 2):
        return f"fewer parts are enough: split_k {tiles.split_k} > {steps} steps"
    return None


def rows_fit(problem: Problem, rows: Rows, gpu: Gpu | None) -> str | None:
    """Return the reason why a program per row of x can't compute the product, or None."""
    del gpu
    if problem.m > MOST_ROWS["triton_gemv"]:
        return f"reads all weights for each row of x: m {problem.m} > {MOST_ROWS['triton_gemv']}"
    if rows.block_k > (enough := max(256, 1 << (problem.k - 1).bit_length())):
        return f"a smaller block is enough: block_k {rows.block_k} > {enough} for k = {problem.k}"
    return None


def warps_fit(problem: Problem, warps: Warps, gpu: Gpu | None) -> str | None:
    """Return the reason why a CUDA block can't compute the product with these warps, or None."""
    del gpu
    if reason := whole_tiles(problem):
        return reason
    if problem.m > MOST_ROWS["cuda"]:
        return f"keeps the sums of all rows of x in registers: m {problem.m} > {MOST_ROWS['cuda']}"
    if problem.m > FEW_ROWS and (warps.tiles_n > 1 or warps.warps_k > 8):
        return (
            f"too much for the registers: tiles_n {warps.tiles_n} x warps_k {warps.warps_k} at m {problem.m}"
        )
    if problem.n % (16 * warps.tiles_n):
        return f"n must be a multiple of {16 * warps.tiles_n}, not {problem.n}"
    steps = problem.k // TILE_K
    if warps.warps_k * warps.split_k > max(4, steps):
        return f"fewer warps are enough: warps_k {warps.warps_k} x split_k {warps.split_k} > {steps} steps"
    return None


def wgmma_fits(problem: Problem, tiles: Wgmma, gpu: Gpu | None) -> str | None:
    """Return the reason why Hopper's kernel can't have these tiles or why smaller tiles are enough, or
    None."""
    shape = problem.m, problem.n, problem.k
    return transposed_tiles.fits(shape, tiles, wgmma_bytes(problem, tiles), gpu)


def stream_k_fits(problem: Problem, tiles: StreamK, gpu: Gpu | None) -> str | None:
    """Return the reason why Hopper's kernel for many rows of x can't have these tiles or why smaller tiles
    are enough, or None."""
    del gpu
    if reason := whole_tiles(problem):
        return reason
    if problem.m <= (few := MOST_ROWS_OF_CLUSTERS):
        return f"the clusters of cuda_wgmma are for so few rows of x: m {problem.m} <= {few}"
    if tiles.block_m > (enough := next((rows for rows in ROWS_OF_X if rows >= problem.m), tiles.block_m)):
        return f"a smaller block is enough: block_m {tiles.block_m} > {enough} for m = {problem.m}"
    return None


def wgmma_bytes(problem: Problem, tiles: Wgmma) -> int:
    """Return the bytes of w in a block's step: words of 128 columns, and scales with their zeros."""
    groups = 1 if problem.granularity == "channel" else TILE_K // problem.group
    return TILE_K // 2 * tiles.block_n + 4 * groups * tiles.block_n


def int4pack_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Return the reason why torch's kernel for this packing can't compute the product, or None."""
    del parameters, gpu
    if problem.dtype != "bfloat16":
        return f"_weight_int4pack_mm takes only bfloat16, not {problem.dtype}"
    if problem.granularity == "channel":
        return "_weight_int4pack_mm takes groups of 32 to 256 weights, not a channel"
    return whole_tiles(problem)


def gemlite_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Return the reason why gemlite can't compute the product, or None."""
    del parameters, gpu
    if problem.granularity == "channel":
        return "gemlite is called only for groups of weights, not for a channel"
    if problem.k % (multiple := max(32, problem.group)):
        return f"k must be a multiple of {multiple}, not {problem.k}"
    return None
