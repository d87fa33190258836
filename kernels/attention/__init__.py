"""Attention, forward: ``out = softmax(q @ k.T / sqrt(head_dim)) @ v`` for each batch entry and head.

q is (batch, heads, seq_q, head_dim); k and v are (batch, kv_heads, seq_k, head_dim). With fewer ``kv_heads``
than ``heads``, neighbouring query heads share a key head (grouped-query attention). With ``causal`` a query
sees the keys up to its own position. The last query and the last key have the same position, so the mask is
aligned at the bottom right, as in FlashAttention. A query that would see no key is refused. q is normal with
a standard deviation of 2, k and v are standard normal: attention is then as peaked as in a real model, and a
block of keys that a kernel leaves out shows.

The work is counted as in the FlashAttention papers: two matrix products with two operations for each
multiplication, ``4 batch heads seq_q seq_k head_dim``, half of that with ``causal``. Softmax is not counted.
q, k and v are read once and out is written once. Arithmetic limits long sequences. Memory limits a decoding
step (``seq_q=1``), which reads all keys and values for one row.

``triton_flash`` is FlashAttention-2 (Dao, 2023, arXiv:2307.08691) over the online softmax of Milakov and
Gimelshein (2018, arXiv:1805.02867). ``triton_flash_hopper`` is the same algorithm in a persistent kernel with
TMA. ``triton_split_k`` is Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023): programs attend to parts of
the keys in parallel, and a second kernel merges the parts. ``cuda_flash`` is FlashAttention-3 (Shah and
others, 2024, arXiv:2407.08608) in CUDA C++ for Hopper alone. Training has kernels of its own:
``attention_with_lse``, which shares the CUDA C++ kernel, and ``attention_backward``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_pipeline.contract import (
    EPSILON,
    Gpu,
    Kernel,
    Provider,
    Tolerance,
    Work,
    bytes_of,
    one_of,
    same_as,
)

MOST_INTERPRETED = 160
"""The longest sequence for Triton's interpreter, with one batch entry: several blocks, the last partly
full."""

DEEPEST_GROUP = 128
"""The maximum number of queries per key head for ``triton_split_k``; more keep a GPU busy without a split."""

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


WIDE_TILES = ((128, 128), (128, 160), (128, 176))
CUDA_TILES = {64: ((128, 128), (128, 192), (192, 128)), 96: WIDE_TILES, 128: WIDE_TILES}
"""The tiles that ``flash.cu`` has, as (block_m, block_n), by head_dim. A warpgroup takes 64 queries. Scores,
probabilities and sums may take 232 registers per thread with two warpgroups, 160 with three. A head_dim of 96
takes the tiles of 128 columns: a quarter of each product multiplies zeros."""


@dataclass(frozen=True, kw_only=True)
class WarpSpecialized:
    """The queries of a tile, the keys of a step, and the stages of the buffer for keys and values."""

    block_m: int = one_of(128, 192, default=128, unit="")
    block_n: int = one_of(128, 160, 176, 192, default=128, unit="")
    stages: int = one_of(2, 3, 4, default=2, unit="s")


def work(problem: Problem) -> Work:
    """Return the least work: q, k and v read once, out written once, and two products of ``2 seq_q seq_k
    head_dim`` operations per head, half of them with ``causal``."""
    moved = bytes_of(problem.dtype, *problem.shapes, problem.shape)
    return Work(moved, {problem.dtype: operations(problem, products=2)})


def operations(problem: Problem, products: int) -> int:
    """Return the operations of ``products`` products of queries and keys, half of them with ``causal``."""
    every = 2 * products * problem.batch * problem.heads * problem.seq_q * problem.seq_k * problem.head_dim
    return every // 2 if problem.causal else every


def tolerance(problem: Problem) -> Tolerance:
    """Return how far an output may be from the reference, for the inputs of ``reference.py``: q is normal
    with a standard deviation of 2, k and v are standard normal.

    Scores are then normal with a standard deviation of 2, and the few largest make up most of a row's sum. So
    an output depends on few keys, however many keys its row sees, and one bound holds for the first and the
    last row of a causal mask. The squares of a row's n probabilities sum up to ``exp(4) / n`` on average, or
    to less than 1; an output is about as large as the root of that sum. eps is the epsilon of the dtype.

    - *Probabilities* are rounded to the dtype one by one before they are multiplied by v: up to 2 eps.
    - *Scores* are rounded to the dtype by ``manual``, as in any attention that is written as separate
      operators. A score between 4 and 8 is wrong by up to 2 eps, so its probability has a relative error of
      up to 2 eps. If two keys share a row's weight, this changes the output by a quarter of the error times
      the difference of their values. Among 2e6 outputs the largest error was 5 eps, and in rows that see many
      keys 40 eps of an output's size. The limits have 10 and 80, for the largest error among 1e8 outputs.
    - *The output* is rounded once, by half an eps relative to it. The limit has 4 eps, for a single
      probability that outweighs the others.

    If a kernel leaves out a block of 32 keys of 4096, one output in 500 exceeds this limit.
    """
    eps = EPSILON[problem.dtype]
    worst = 10.0 if problem.causal else min(10.0, 80 * math.sqrt(math.exp(4) / problem.seq_k))
    return Tolerance(rtol=4 * eps, atol=worst * eps)


def interpreted(problem: Problem) -> Problem:
    """Return a small problem for Triton's slow interpreter: one batch entry, one key head with up to two
    query heads, few queries and keys. Odd dimensions stay odd."""
    group = min(problem.group, 2)
    seq_q, seq_k = (min(length, MOST_INTERPRETED + length % 2) for length in (problem.seq_q, problem.seq_k))
    return dataclasses.replace(
        problem,
        batch=1,
        heads=group,
        kv_heads=1,
        seq_q=min(seq_q, seq_k) if problem.causal else seq_q,
        seq_k=seq_k,
    )


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


def any_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why the problem is invalid, or None."""
    del parameters, gpu
    return refused(problem)


def square_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why a provider with a causal mask aligned at the top left can't compute the problem,
    or None."""
    del parameters, gpu
    if problem.causal and problem.seq_q != problem.seq_k:
        return refused(problem) or "its causal mask is for as many queries as keys"
    return refused(problem)


def sdpa_cudnn_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why SDPA's cuDNN backend can't compute the problem, or None. It refuses a single
    query with a single key."""
    if problem.seq_q == problem.seq_k == 1:
        return refused(problem) or "cuDNN takes no single query with a single key"
    return square_fits(problem, parameters, gpu)


def sdpa_flash_fits(problem: Problem, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why SDPA's flash backend can't compute the problem, or None. On a CPU its causal mask
    is aligned at the top left."""
    return square_fits(problem, parameters, gpu) if gpu is None else refused(problem)


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


def tile_columns(head_dim: int) -> int:
    """Return the columns of the CUDA C++ kernels' tiles; TMA fills those past the head_dim with zeros."""
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


FLASH_ATTN_4 = Provider(
    "flash_attn_4",
    "peers.py:flash_attn_4",
    None,
    any_fits,
    language="torch",
    devices=("cuda",),
    package="flash-attn-4",
)
"""FlashAttention-4, for which each of attention's kernels has an entry of its own."""


kernel = Kernel(
    problem=Problem,
    size=("seq_q",),
    work=work,
    tolerance=tolerance,
    headline="tflops",
    arguments=("causal",),
    interpreted=interpreted,
    as_made=True,
    baseline="sdpa_flash",
    any_order=True,
    providers=(
        Provider("manual", "torch.py:manual", fits=any_fits),
        Provider("sdpa_flash", "torch.py:sdpa_flash", fits=sdpa_flash_fits),
        Provider("sdpa_cudnn", "torch.py:sdpa_cudnn", fits=sdpa_cudnn_fits, devices=("cuda",)),
        Provider("sdpa_math", "torch.py:sdpa_math", fits=any_fits),
        Provider("torch_compile", "torch_compiled.py:flex", fits=any_fits, devices=("cuda",), compiled=True),
        Provider("triton_flash", "triton.py:flash", Flash, tiles_fit, compile_weight=compile_weight),
        Provider("triton_split_k", "triton_split_k.py:split_k", Split, split_fits),
        Provider(
            "triton_flash_hopper",
            "triton_hopper.py:flash_hopper",
            Hopper,
            hopper_fits,
            needs="sm_90",
            compile_weight=compile_weight,
        ),
        Provider(
            "cuda_flash",
            "cuda.py:cuda_flash",
            WarpSpecialized,
            warp_specialized_fits,
            extension="flash.cu",
            needs="sm_90a",
        ),
        FLASH_ATTN_4,
    ),
)
