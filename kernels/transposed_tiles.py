"""Parameters of Hopper's products with packed weights; see ``include/transposed_tiles.cuh``."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of

STEP_K = 128
"""Columns of x and w per step."""

MOST_SUMS = 128
"""The maximum number of float32 sums per thread, half of its registers."""

MOST_BLOCKS = 4
"""The maximum number of blocks along m with a small block_m: each block reads and unpacks the same
weights."""


@dataclass(frozen=True, kw_only=True)
class Wgmma:
    """A block's tile of ``block_m`` rows of x by ``block_n`` rows of w, with ``stages`` buffers of 128
    columns of both. The ``split_k`` blocks of a cluster share k."""

    block_m: int = one_of(16, 32, 64, 128, 256, default=64, unit="")
    block_n: int = one_of(128, 256, unit="")
    split_k: int = one_of(1, 2, 4, 8, default=2, unit="k")
    stages: int = one_of(2, 3, 4, 6, 8, default=4, unit="s")


def buffers(tiles: Wgmma, bytes_of_w: int) -> int:
    """Return the bytes of a block's buffers. Each stage holds 128 columns of x in 16 bits and a step's bytes
    of w, rounded up to a multiple of 1024 bytes."""
    return tiles.stages * -(-(2 * STEP_K * tiles.block_m + bytes_of_w) // 1024) * 1024


def shared_memory(tiles: Wgmma, bytes_of_w: int) -> int:
    """Return a block's bytes of shared memory: the buffers, their barriers, and the alignment."""
    return buffers(tiles, bytes_of_w) + 16 * tiles.stages + 1024


def fits(shape: tuple[int, int, int], tiles: Wgmma, bytes_of_w: int, gpu: Gpu | None) -> str | None:
    """Return the reason why a product of m rows of x and n rows of w, with k columns, can't have these tiles
    or why smaller tiles are enough, or None."""
    m, n, k = shape
    for name, value, multiple in (("n", n, 16), ("k", k, STEP_K)):
        if value % multiple:
            return f"{name} must be a multiple of {multiple}, not {value}"
    if (sums := tiles.block_m * tiles.block_n // 256) > MOST_SUMS:
        return f"too much for the registers: {sums} sums per thread > {MOST_SUMS}"
    staged, held = 4 * tiles.block_m * (tiles.block_n + 4), buffers(tiles, bytes_of_w)
    if staged > held:
        return f"too few stages: the sums need {staged} bytes, and the stages have {held}"
    needed = shared_memory(tiles, bytes_of_w)
    if gpu is not None and needed > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes > {gpu.shared_memory}"
    return _rows_fit(m, tiles) or _parts_fit(m, n, k, tiles, gpu)


def _rows_fit(m: int, tiles: Wgmma) -> str | None:
    if tiles.block_m > (enough := max(16, 1 << (m - 1).bit_length())):
        return f"a smaller block is enough: block_m {tiles.block_m} > {enough} for m = {m}"
    blocks = -(-m // tiles.block_m)
    if tiles.block_m < 128 and blocks > MOST_BLOCKS:
        return f"reads all weights {blocks} times: block_m {tiles.block_m} for m = {m}"
    return None


def _parts_fit(m: int, n: int, k: int, tiles: Wgmma, gpu: Gpu | None) -> str | None:
    if tiles.split_k > (steps := k // STEP_K):
        return f"fewer parts are enough: split_k {tiles.split_k} > {steps} steps"
    filled = -(-m // tiles.block_m) * -(-n // tiles.block_n) * tiles.split_k // 2
    if gpu is not None and tiles.split_k > 1 and filled >= gpu.multiprocessors:
        return f"half as many parts fill the GPU: split_k {tiles.split_k} with {filled} blocks"
    return None
