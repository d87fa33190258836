"""Attention's problem, the parameters of its providers, and what fits. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_pipeline.contract import Gpu, one_of, same_as

DEEPEST_GROUP = 128
"""The maximum number of queries per key head for ``triton_split_k``; more keep a GPU busy without a split."""

MOST_PACKED = 1024
"""The most queries of a head for ``cuda_flash_packed``."""

MAX_ACCUMULATORS = 160
"""The maximum number of float32 scores and sums that a thread of a Triton program may keep; with more it
spills."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A batch of heads, each with queries, keys and values."""

    batch: int = 4
    heads: int = 16
    kv_heads: int = same_as("heads")
    seq_q: int
    seq_k: int = same_as("seq_q")
    head_dim: int = one_of(64, 96, 128, default=128)
    causal: bool = False
    dtype: str = one_of("bfloat16", "float16")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of q and of the output."""
        return self.batch, self.heads, self.seq_q, self.head_dim

    @property
    def shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """The shapes of q, k and v."""
        keys = (self.batch, self.kv_heads, self.seq_k, self.head_dim)
        return self.shape, keys, keys

    @property
    def group(self) -> int:
        """The number of query heads that share a key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class Flash:
    """The queries of a program (block_m), and the keys that it takes per step (block_n)."""

    block_m: int = one_of(32, 64, 128, default=128, unit="")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    num_warps: int = one_of(2, 4, 8, default=8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Split:
    """The number of parts of the keys (split_k), and the keys that a program takes per step (block_n)."""

    split_k: int = one_of(1, 2, 4, 8, 16, 32, 64, default=8, unit="p")
    block_n: int = one_of(32, 64, 128, default=64, unit="")
    num_warps: int = one_of(2, 4, 8, default=4, unit="w")
    num_stages: int = one_of(2, 3, 4, 5, default=3, unit="s")


@dataclass(frozen=True, kw_only=True)
class Hopper:
    """The tiles of the persistent kernel, and its programs per multiprocessor. With two programs, one
    computes softmax while the other multiplies."""

    block_m: int = one_of(64, 128, default=128, unit="")
    block_n: int = one_of(64, 128, default=128, unit="")
    num_warps: int = one_of(4, 8, default=8, unit="w")
    num_stages: int = one_of(2, 3, 4, default=2, unit="s")
    per_sm: int = one_of(1, 2, 3, unit="p", omit_default=True)


CUDA_TILES = {
    64: ((64, 128), (128, 128), (128, 192), (192, 128)),
    96: ((64, 128), (128, 128), (128, 192), (192, 112)),
    128: ((64, 128), (128, 128), (128, 160), (128, 176)),
}
"""The tiles that ``flash.cu`` has, as (block_m, block_n), by head_dim. A warpgroup takes 64 queries. Scores,
probabilities and sums may take 232 registers per thread with two warpgroups, 160 with three. With a head_dim
of 96, three warpgroups spill with 128 keys, and don't with 112."""


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized:
    """The queries of a tile, the keys of a step, and the stages of the buffer for keys and values."""

    block_m: int = one_of(64, 128, 192, default=128, unit="")
    block_n: int = one_of(112, 128, 160, 176, 192, default=128, unit="")
    stages: int = one_of(2, 3, 4, default=2, unit="s")


def refused(problem: Problem) -> str | None:
    """Return the reason why the problem is invalid, or None."""
    if problem.heads % problem.kv_heads:
        return (
            f"heads must be a multiple of kv_heads: {problem.heads} is not a multiple of {problem.kv_heads}"
        )
    if problem.causal and problem.seq_q > problem.seq_k:
        return (
            f"the first queries would see no key: seq_q {problem.seq_q} > seq_k {problem.seq_k} with causal"
        )
    return None


def uneven(problem: Problem) -> str | None:
    """Return the reason why a Triton provider, whose blocks are powers of two, can't compute the problem, or
    None."""
    if problem.head_dim & (problem.head_dim - 1):
        return f"its blocks are powers of two, and head_dim is {problem.head_dim}"
    return None


def too_large(name: str, block: int, extent: int, smallest: int) -> str | None:
    """Return the reason why a smaller block is enough for this extent of the problem, or None."""
    if block > (enough := max(smallest, 1 << (extent - 1).bit_length())):
        return f"a smaller block is enough: {name} {block} > {enough} for {extent}"
    return None


def tiles_fit(problem: Problem, tiles: Flash | Hopper, gpu: Gpu | None) -> str | None:
    """Return the reason why these tiles don't fit or are larger than needed, or None."""
    return _tiles_fit(problem, tiles, gpu, blocks_of_queries=1)


def hopper_fits(problem: Problem, tiles: Hopper, gpu: Gpu | None) -> str | None:
    """Return the reason why the persistent kernel's tiles don't fit, or None. It also keeps a block of the
    output in shared memory and may have several programs per multiprocessor."""
    if reason := _tiles_fit(problem, tiles, gpu, blocks_of_queries=2):
        return reason
    staged = 2 * tiles.block_m + 2 * tiles.num_stages * tiles.block_n
    needed = tiles.per_sm * (2 * problem.head_dim * staged + 2048)
    if tiles.per_sm > 1 and gpu is not None and needed > gpu.shared_memory:
        programs = f"{tiles.per_sm} programs"
        return f"too much for the shared memory: {needed} bytes in {programs} > {gpu.shared_memory}"
    return None


def warp_specialized_fits(
    problem: Problem,
    tiles: WarpSpecialized,
    gpu: Gpu | None,
    have: Mapping[int, Sequence[tuple[int, int]]] = CUDA_TILES,
) -> str | None:
    """Return the reason why a build of the CUDA C++ kernel does not have these tiles, or None. ``have`` are
    the build's tiles, as (block_m, block_n), by head_dim."""
    if reason := refused(problem):
        return reason
    if problem.head_dim not in have:
        return f"it has no tiles for a head_dim of {problem.head_dim}"
    if (tiles.block_m, tiles.block_n) not in have[problem.head_dim]:
        those = " and ".join(f"{m} by {n}" for m, n in have[problem.head_dim])
        return f"its tiles for a head_dim of {problem.head_dim} are {those}"
    if reason := too_large("block_m", tiles.block_m, problem.seq_q, 128):
        return reason
    if reason := too_large("block_n", tiles.block_n, problem.seq_k, 128):
        return reason
    needed = cuda_shared_memory(problem.head_dim, tiles)
    return too_much_shared(needed, tiles.stages, gpu)


def packed_fits(
    problem: Problem,
    tiles: WarpSpecialized,
    gpu: Gpu | None,
    have: Mapping[int, Sequence[tuple[int, int]]] = CUDA_TILES,
) -> str | None:
    """Return the reason why the queries of the heads that share a key head can't be those of one head, or
    that they need not, or None. ``have`` is as for ``warp_specialized_fits``."""
    if reason := refused(problem):
        return reason
    if problem.group == 1:
        return "each query head has a key head of its own"
    if problem.seq_q > MOST_PACKED:
        return f"few rows of a tile are empty without packing: {problem.seq_q} queries > {MOST_PACKED}"
    one_head = dataclasses.replace(
        problem, heads=problem.kv_heads, seq_q=problem.group * problem.seq_q, causal=False
    )
    return warp_specialized_fits(one_head, tiles, gpu, have)


def tile_columns(head_dim: int) -> int:
    """Return the columns that the CUDA C++ kernels' tiles take in shared memory, whole slabs of 64. TMA fills
    those past the head_dim with zeros. The forward pass does not multiply them, the backward pass does."""
    return 64 if head_dim <= 64 else 128


def cuda_shared_memory(head_dim: int, tiles: WarpSpecialized) -> int:
    """Return a block's bytes of shared memory: the queries, the stages of keys and values, and 1 KiB for the
    barriers. ``too_much_shared`` adds 1 KiB for alignment."""
    return 2 * tile_columns(head_dim) * (tiles.block_m + 2 * tiles.stages * tiles.block_n) + 1024


def _tiles_fit(
    problem: Problem, tiles: Flash | Hopper, gpu: Gpu | None, blocks_of_queries: int
) -> str | None:
    if reason := refused(problem) or uneven(problem):
        return reason
    if reason := too_large("block_m", tiles.block_m, problem.seq_q, 64):
        return reason
    if reason := too_large("block_n", tiles.block_n, problem.seq_k, 64):
        return reason
    if tiles.block_m < 16 * tiles.num_warps:
        return f"a warp takes 16 queries: {tiles.num_warps} warps > {tiles.block_m} / 16"
    kept = tiles.block_m * (tiles.block_n + problem.head_dim) // (32 * tiles.num_warps)
    if kept > MAX_ACCUMULATORS:
        return f"too much for the registers: {kept} scores and sums per thread > {MAX_ACCUMULATORS}"
    staged = blocks_of_queries * tiles.block_m + 2 * tiles.num_stages * tiles.block_n
    return too_much_shared(2 * problem.head_dim * staged, tiles.num_stages, gpu)


def too_much_shared(needed: int, num_stages: int, gpu: Gpu | None) -> str | None:
    """Return the reason why the stages do not fit into shared memory, or None. Without a GPU return None."""
    # Barriers and reductions take some hundred bytes more.
    if gpu is not None and needed + 1024 > gpu.shared_memory:
        return f"too much for the shared memory: {needed} bytes in {num_stages} stages > {gpu.shared_memory}"
    return None


def split_fits(problem: Problem, split: Split, gpu: Gpu | None) -> str | None:
    """Return the reason why the keys can't be split like this, or None."""
    if reason := refused(problem) or uneven(problem):
        return reason
    queries = problem.group * problem.seq_q
    if queries > DEEPEST_GROUP:
        return f"no split is needed: {queries} queries per key head > {DEEPEST_GROUP}"
    if (split.split_k - 1) * split.block_n >= problem.seq_k and split.split_k > 1:
        return (
            f"a part would have no key: {split.split_k} parts in steps of {split.block_n} for "
            f"{problem.seq_k} keys"
        )
    staged = rows_of(queries) + 2 * split.num_stages * split.block_n
    return too_much_shared(2 * problem.head_dim * staged, split.num_stages, gpu)


def rows_of(queries: int) -> int:
    """Return the rows of the tile that holds all queries of one key head; a tensor core takes at least 16."""
    return max(16, 1 << (queries - 1).bit_length())


def compile_weight(tiles: Flash | Hopper) -> float:
    """Return a weight of the compile time: a thread's products per step."""
    return tiles.block_m * tiles.block_n / tiles.num_warps
