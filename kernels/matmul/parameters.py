"""Declare the product's parameters, by provider, and check whether they fit a problem and a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernel_pipeline.contract import ITEM_BYTES, Gpu, one_of

from .problem import FLOAT8, Problem, refused


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A Triton program's block_m by block_n tile of the output, with block_k products per step."""

    block_m: int = one_of(16, 32, 64, 128, 256, default=128, unit="")
    block_n: int = one_of(16, 32, 64, 128, 256, default=128, unit="")
    block_k: int = one_of(32, 64, 128, 256, default=64, unit="")
    group_m: int = one_of(1, 4, 8, default=8, unit="g")
    num_warps: int = one_of(4, 8, default=8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class NaiveTiles:
    """The side of the square tile that a program computes, with 32 products per step."""

    side: int = one_of(32, 64, 128, default=64, unit="")
    num_warps: int = one_of(4, 8, unit="w")


@dataclass(frozen=True, kw_only=True)
class SplitTiles:
    """Tiles whose products ``split_k`` programs share. ``reduction``: ``atomic`` adds their sums to the
    output, in any order; ``workspace`` stores them, and a second kernel adds them in order."""

    block_m: int = one_of(16, 32, 64, 128, default=64, unit="")
    block_n: int = one_of(16, 32, 64, 128, default=128, unit="")
    block_k: int = one_of(32, 64, 128, default=64, unit="")
    split_k: int = one_of(2, 4, 8, 16, default=4, unit="k")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")
    reduction: str = one_of("atomic", "workspace", default="workspace")


@dataclass(frozen=True, kw_only=True)
class PersistentTiles:
    """Tiles that a persistent program computes one after the other. A tile is stored in ``epilogue_parts``
    parts, and shared memory holds one part at a time."""

    block_m: int = one_of(64, 128, default=128, unit="")
    block_n: int = one_of(64, 128, 256, default=128, unit="")
    block_k: int = one_of(32, 64, 128, default=64, unit="")
    group_m: int = one_of(4, 8, 16, default=8, unit="g")
    num_warps: int = one_of(4, 8, default=8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")
    epilogue_parts: int = one_of(1, 2, 4, default=2, unit="e")


@dataclass(frozen=True, kw_only=True)
class GemvTiles:
    """The block_k by block_n tile of b that a Triton program reads per step; ``split_k`` programs share the
    products of a column."""

    block_n: int = one_of(8, 16, 32, 64, 128, default=32, unit="")
    block_k: int = one_of(32, 64, 128, 256, 512, default=128, unit="")
    split_k: int = one_of(1, 2, 4, 8, 16, default=4, unit="k")
    num_warps: int = one_of(4, 8, unit="w")
    num_stages: int = one_of(1, 4, default=4, unit="s")


@dataclass(frozen=True, kw_only=True)
class Gemv:
    """The warps of a block, and the columns that it takes of a row-major b with aligned rows."""

    columns: int = one_of(32, 64, 128, unit="")
    num_warps: int = one_of(4, 8, 16, default=8, unit="w")


@dataclass(frozen=True, kw_only=True)
class Square:
    """The side of the square tiles that a block of ``tile * tile`` threads keeps in shared memory."""

    tile: int = one_of(16, 32, default=32, unit="")


@dataclass(frozen=True, kw_only=True)
class Wgmma:
    """A block's tile: block_m rows of a and block_n columns of b. Each of ``stages`` buffers holds 128 bytes
    of every row and column. ``cluster_size`` blocks, one above the other, share their columns of b by
    multicast. ``split_k`` blocks share a tile, each with a part of k."""

    block_m: int = one_of(64, 128, default=128, unit="")
    block_n: int = one_of(64, 128, 256, default=256, unit="")
    group_m: int = one_of(4, 8, 16, default=8, unit="g")
    stages: int = one_of(3, 4, 6, 8, default=4, unit="s")
    cluster_size: int = one_of(1, 2, 4, default=2, unit="c")
    split_k: int = one_of(1, 2, 4, 8, unit="k")


MAX_ACCUMULATORS = 128
"""The most float32 sums of a tile that a thread of a Triton program keeps: half of its registers."""

MAX_UNROLLED = 4096
"""The maximum number of multiplications per step of a thread without tensor cores. Triton unrolls all of them
and compiles this many for up to 5 seconds; tiles for tensor cores take less than one."""

MOST_ROWS = 8
"""The maximum number of rows of a in a matrix-vector product."""

MOST_WORKSPACE = 2**30
"""The maximum number of bytes of a split product's workspace, all of which are written and read."""

MOST_BLOCKS = 8
"""The maximum number of blocks of a cluster on every GPU that has clusters."""

FLOAT8_CAPABILITY = (8, 9)


class _Tiled(Protocol):
    @property
    def block_m(self) -> int: ...
    @property
    def block_n(self) -> int: ...
    @property
    def block_k(self) -> int: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def num_stages(self) -> int: ...


def torch_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Return the reason why torch does not support the arithmetic or the layout, or None. On a CPU torch
    would silently compute ``ieee``."""
    del parameters
    if reason := refused(problem.dtype, problem.arithmetic):
        return reason
    if gpu is None and problem.arithmetic != "ieee":
        return f"{problem.arithmetic} needs a GPU's tensor cores"
    if problem.dtype == FLOAT8:
        if problem.layout != "nt":
            return "torch multiplies float8 only with layout=nt"
        if gpu is not None and (problem.k % 16 or problem.n % 16):
            return "torch multiplies float8 only if n and k are multiples of 16"
        if gpu is not None and gpu.capability < FLOAT8_CAPABILITY:
            return "float8 needs sm_89"
    return None


def compiled_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Return the reason why torch.compile can't compute the product, such as float8, or None."""
    if problem.dtype == FLOAT8:
        return "it multiplies without scales, and float8 has scales"
    return torch_fits(problem, parameters, gpu)


def peer_fits(problem: Problem, parameters: None, gpu: Gpu | None) -> str | None:
    """Return the reason why quack does not support the product, or None."""
    del parameters, gpu
    if problem.dtype not in ("bfloat16", "float16"):
        return "it takes only bfloat16 and float16"
    if (reason := refused(problem.dtype, problem.arithmetic)) is not None:
        return reason
    return None if rows_are_aligned(problem) else "its rows must be multiples of 16 bytes"


def rows_are_aligned(problem: Problem) -> bool:
    """Whether every row of the inputs and of the output, as stored in memory, is a multiple of 16 bytes."""
    a = problem.k if problem.layout[0] == "n" else problem.m
    b = problem.n if problem.layout[1] == "n" else problem.k
    itemsize = ITEM_BYTES[problem.dtype]
    of_output = problem.n * ITEM_BYTES[problem.output_dtype]
    return a * itemsize % 16 == b * itemsize % 16 == of_output % 16 == 0


def ieee_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why a float32 kernel without tensor cores can't compute the product, or None."""
    del parameters, gpu
    if problem.arithmetic != "ieee":
        return f"{problem.arithmetic} needs tensor cores, which this kernel does not use"
    if problem.dtype == FLOAT8:
        return "float8 needs tensor cores, which this kernel does not use"
    return None


def vectors_fit(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why a float32 kernel that loads four elements at once can't compute the product, or
    None."""
    if reason := ieee_fits(problem, parameters, gpu):
        return reason
    return _in_units(problem, 4)


def step_mma_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why the steps by tensor cores, which copy 16 bytes at once, can't compute the
    product, or None."""
    del parameters, gpu
    if problem.dtype not in ("bfloat16", "float16"):
        return "it multiplies only bfloat16 and float16"
    return refused(problem.dtype, problem.arithmetic) or _in_units(problem, 8)


def _in_units(problem: Problem, unit: int) -> str | None:
    """Return the reason why rows of both inputs can't be read by ``unit`` elements, or None."""
    if problem.n % unit or problem.k % unit:
        return f"it reads {unit} elements at once: n and k must be multiples of {unit}"
    return None


def gemv_fits(problem: Problem, parameters: Gemv, gpu: Gpu | None) -> str | None:
    """Return the reason why the matrix-vector kernel can't compute the product, or None: ``a`` has too many
    rows, or a block has too many warps."""
    if reason := ieee_fits(problem, parameters, gpu) or _few_rows(problem):
        return reason
    if problem.m > MOST_ROWS // 2 and parameters.num_warps > 8:
        return f"too much for the registers: {parameters.num_warps} warps > 8 with {problem.m} rows of a"
    if problem.layout[1] == "t" and parameters.columns != Gemv().columns:
        return "a warp takes a column of a column-major b: columns has no effect"
    return None


def triton_gemv_fits(problem: Problem, tiles: GemvTiles, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program can't compute this product of few rows, or why smaller tiles are
    enough, or None."""
    if reason := gemv_fits(problem, Gemv(), gpu):
        return reason
    if reason := _smaller_does(problem, ("n", 8), tiles.block_n) or _smaller_does(
        problem, ("k", 32), tiles.block_k
    ):
        return reason
    rows = 1 << (problem.m - 1).bit_length()
    sums = rows * tiles.block_n * tiles.block_k // (32 * tiles.num_warps)
    if sums > MAX_ACCUMULATORS:
        return f"too much for the registers: {sums} sums per thread > {MAX_ACCUMULATORS}"
    return _split_fits(problem, tiles.split_k, tiles.block_k)


def _few_rows(problem: Problem) -> str | None:
    if problem.m > MOST_ROWS:
        return f"it takes at most {MOST_ROWS} rows of a at once"
    return None


def tiles_fit(problem: Problem, tiles: _Tiled, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program can't have these tiles or why smaller tiles are enough, or
    None."""
    return _tiles_fit(problem, tiles, gpu, narrowest=16)


def _tiles_fit(problem: Problem, tiles: _Tiled, gpu: Gpu | None, narrowest: int) -> str | None:
    """As ``tiles_fit``, for a provider whose tiles have at least ``narrowest`` columns."""
    if reason := triton_fits(problem, gpu):
        return reason
    # Hopper's tensor cores take 64 rows at once, even if there are fewer.
    for name, smallest in (("m", 64), ("n", narrowest), ("k", 32)):
        if reason := _smaller_does(problem, (name, smallest), getattr(tiles, f"block_{name}")):
            return reason
    accumulators = _accumulators(tiles)
    if accumulators > MAX_ACCUMULATORS:
        return f"too much for the registers: {accumulators} sums per thread > {MAX_ACCUMULATORS}"
    unrolled = accumulators * tiles.block_k
    if problem.dtype == "float32" and problem.arithmetic == "ieee" and unrolled > MAX_UNROLLED:
        return f"too long to compile: {unrolled} multiplications per thread in a step > {MAX_UNROLLED}"
    return _shared_memory_fits(tiles, problem, gpu)


def naive_fits(problem: Problem, tiles: NaiveTiles, gpu: Gpu | None) -> str | None:
    """Return the reason why the naive kernel's square tiles do not fit, or None."""
    sized = Tiles(block_m=tiles.side, block_n=tiles.side, block_k=32, num_warps=tiles.num_warps, num_stages=2)
    return _tiles_fit(problem, sized, gpu, narrowest=32)


def split_fits(problem: Problem, tiles: SplitTiles, gpu: Gpu | None) -> str | None:
    """Return the reason why split tiles do not fit, or None."""
    return tiles_fit(problem, tiles, gpu) or _split_fits(problem, tiles.split_k, tiles.block_k)


def persistent_fits(problem: Problem, tiles: PersistentTiles, gpu: Gpu | None) -> str | None:
    """Return the reason why the persistent kernel's tiles, which TMA copies, do not fit, or None."""
    if reason := _tiles_fit(problem, tiles, gpu, narrowest=64):
        return reason
    part = tiles.block_n // tiles.epilogue_parts
    stored = tiles.block_m * part * ITEM_BYTES[problem.output_dtype]
    return _shared_memory_fits(tiles, problem, gpu, beside=stored)


def triton_fits(problem: Problem, gpu: Gpu | None) -> str | None:
    """Return the reason why Triton does not support the arithmetic, or None."""
    if reason := refused(problem.dtype, problem.arithmetic):
        return reason
    if problem.dtype == FLOAT8 and gpu is not None and gpu.capability < FLOAT8_CAPABILITY:
        return "float8 needs sm_89"
    return None


def wgmma_fits(problem: Problem, tiles: Wgmma, gpu: Gpu | None) -> str | None:
    """Return the reason why Hopper's kernel can't compute the problem or why smaller tiles are enough, or
    None."""
    reason = (
        refused(problem.dtype, problem.arithmetic)
        or _wgmma_multiplies(problem, tiles)
        or _smaller_does(problem, ("m", 64), tiles.block_m)
        or _smaller_does(problem, ("n", 64), tiles.block_n)
        or _cluster_fits(problem, tiles, gpu)
    )
    needed = wgmma_shared_memory(tiles)
    if reason is None and gpu is not None and needed > gpu.shared_memory:
        return (
            f"too much for the shared memory: {needed} bytes in {tiles.stages} stages > {gpu.shared_memory}"
        )
    return reason


def _wgmma_multiplies(problem: Problem, tiles: Wgmma) -> str | None:
    if problem.dtype == "float32":
        return "it multiplies only bfloat16, float16 and float8"
    if problem.dtype != FLOAT8:
        if problem.layout[0] == "t" and min(tiles.block_m, tiles.block_n) < 128:
            return f"no tile of {tiles.block_m} x {tiles.block_n} takes a column-major a"
        return None
    if problem.layout != "nt":
        return "the tensor cores take float8 only with layout=nt"
    if problem.arithmetic == "ieee" and tiles.block_n > 128:
        return f"too much for the registers: ieee keeps sums of float8 twice, block_n {tiles.block_n} > 128"
    return None


def _cluster_fits(problem: Problem, tiles: Wgmma, gpu: Gpu | None) -> str | None:
    """Return the reason why blocks can't share tiles like this, or why fewer blocks are enough, or None."""
    blocks = tiles.cluster_size * tiles.split_k
    if blocks > MOST_BLOCKS:
        return f"too large a cluster: cluster_size x split_k is {blocks} > {MOST_BLOCKS}"
    rows, columns = -(-problem.m // tiles.block_m), -(-problem.n // tiles.block_n)
    if tiles.cluster_size > rows:
        return (
            f"a smaller cluster is enough: cluster_size {tiles.cluster_size} > {rows} tiles above each other"
        )
    steps = -(-problem.k * ITEM_BYTES[problem.dtype] // 128)
    if tiles.split_k > steps:
        return f"fewer blocks are enough: split_k {tiles.split_k} > {steps} steps of 128 bytes of k"
    halved = rows * columns * tiles.split_k // 2
    if tiles.split_k > 1 and gpu is not None and halved >= gpu.multiprocessors:
        return (
            f"fewer blocks are enough: half of split_k {tiles.split_k} makes {halved}, one for "
            "each multiprocessor"
        )
    return None


def wgmma_shared_memory(tiles: Wgmma) -> int:
    """Return a block's bytes of shared memory. Each stage holds 128 bytes of every row and column, and up to
    128 columns of the output are staged in 16 bits, with padding. With split_k, the same memory later holds
    the tile's float32 sums and the sums that other blocks send. The barriers and their alignment add to
    that."""
    buffers = 128 * (tiles.block_m + tiles.block_n) * tiles.stages
    barriers = 1024 + 8 * (2 * tiles.stages + 1)
    if tiles.split_k == 1:
        staged = 64 * 2 * tiles.block_n if tiles.block_n < 128 else 2 * (64 * 128 + 3 * 128)
        return buffers + tiles.block_m // 64 * staged + barriers
    sums = tiles.block_m * (tiles.block_n + 8) * 4
    return max(buffers, sums + sums // tiles.split_k * (tiles.split_k - 1)) + barriers


def _smaller_does(problem: Problem, dimension: tuple[str, int], block: int) -> str | None:
    name, smallest = dimension
    extent = getattr(problem, name)
    if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
        return f"a smaller block is enough: block_{name} {block} > {enough} for {name} = {extent}"
    return None


def _split_fits(problem: Problem, split_k: int, block_k: int) -> str | None:
    steps = -(-problem.k // block_k)
    if split_k > 1 and split_k > steps:
        return f"fewer programs are enough: split_k {split_k} > {steps} steps of block_k {block_k}"
    needed = 4 * split_k * problem.m * problem.n
    if split_k > 1 and needed > MOST_WORKSPACE:
        return f"too large a workspace: {needed} bytes > {MOST_WORKSPACE}"
    return None


def _shared_memory_fits(tiles: _Tiled, problem: Problem, gpu: Gpu | None, beside: int = 0) -> str | None:
    elements = (tiles.block_m + tiles.block_n) * tiles.block_k
    needed = elements * ITEM_BYTES[problem.dtype] * tiles.num_stages + beside
    if gpu is not None and needed > gpu.shared_memory:
        stages = f"{tiles.num_stages} stages"
        return f"too much for the shared memory: {needed} bytes in {stages} > {gpu.shared_memory}"
    return None


def _accumulators(tiles: _Tiled) -> int:
    """Return the number of float32 sums per thread."""
    return tiles.block_m * tiles.block_n // (32 * tiles.num_warps)


def compile_weight(tiles: _Tiled) -> float:
    """Return a weight of the compile time: a thread's multiplications per step."""
    return _accumulators(tiles) * tiles.block_k
