"""Attention, backward: the gradients of q, k and v, given the gradient of the output.

With ``s = q @ k.T / sqrt(head_dim)``, ``p = exp(s - lse)``, ``delta`` the row sums of ``out * d_out`` and
``ds = p * (d_out @ v.T - delta)``:

    dv = p.T @ d_out,   dq = ds @ k / sqrt(head_dim),   dk = ds.T @ q / sqrt(head_dim)

The problem and the layout are the same as for ``attention``. The inputs are q, k, v, the forward pass's
output ``out`` and its ``lse``, the logarithm of the sum of each row's exponentials, in float32, and
``d_out``. The outputs are dq, dk and dv. With fewer ``kv_heads`` than ``heads``, dk and dv are sums over the
heads that share a key head.

out and lse are random: the formulas hold for any values. lse is as large as in a forward pass without a mask.
With the lse of a real forward pass each row of a causal mask would have its own size.

The work is counted as in the FlashAttention papers: five matrix products, ``10 batch heads seq_q seq_k
head_dim`` operations, half of that with ``causal``. Each input is read once, each output is written once.

``triton_flash`` recomputes p in two kernels, which makes seven products. In one kernel a program keeps a
block of keys and their sums, in the other a block of queries. Without atomics the outputs are the same at
every call. The algorithm is FlashAttention-2's (Dao, 2023, arXiv:2307.08691). It needs Hopper, because TMA
copies the blocks: without TMA, the operands of the second product would leave too few registers.

``cuda_flash`` is FlashAttention-3's backward pass (Shah and others, 2024, arXiv:2407.08608) in CUDA C++ for
Hopper alone. One kernel does the five products. It sums dq in float32 in device memory, by additions whose
order differs from call to call unless it is ``deterministic``, and a second kernel rounds the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, Gpu, Kernel, Provider, Tolerance, Work, bytes_of, one_of

from ..attention import (
    FLASH_ATTN_4,
    any_fits,
    interpreted,
    operations,
    sdpa_cudnn_fits,
    sdpa_flash_fits,
)
from ..attention.parameters import Problem, refused, too_large, too_much_shared, uneven

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
    """The queries of a tile, the stages of the buffer for queries and d_out, and whether blocks add their
    parts of dq in turns, so that the sums are the same at every call (``deterministic``)."""

    block_m: int = one_of(64, 80, 128, default=64, unit="")
    stages: int = one_of(2, 3, default=2, unit="s")
    deterministic: bool = one_of(False, True, omit_default=True)


def work(problem: Problem) -> Work:
    """Return the least work: q, k, v, out, d_out and lse read once, dq, dk and dv written once, and five
    products of ``2 seq_q seq_k head_dim`` operations per head, half of them with ``causal``."""
    q, k, v = problem.shapes
    moved = bytes_of(problem.dtype, *(q, k, v) * 2, q, q) + bytes_of("float32", problem.shape[:3])
    return Work(moved, {problem.dtype: operations(problem, products=5)})


def tolerance(problem: Problem) -> tuple[Tolerance, ...]:
    """Return how far dq, dk and dv may be from the reference.

    A probability is ``exp(s - 0.5) / seq_k``. The squares of a row's probabilities sum up to ``e / seq_k`` on
    average, the squares of a column to ``e seq_q / seq_k**2``, once for each of the ``group`` heads that
    share it. An element of ``(d_out @ v.T - delta) / sqrt(head_dim)`` has a size of about sqrt(2). The roots
    of these products are the sizes of dq, dk and dv. A causal mask leaves a part of each sum.

    p and ds are rounded to the dtype one by one before they are multiplied, and the outputs are rounded once:
    up to 2 eps of the size. ``manual`` rounds the scores too, as any implementation by separate operators
    does, and a large probability is then wrong by 2 eps, relative to it: the worst of 1e5 outputs was wrong
    by 8 eps of the size, and 16 allow for the worst of 1e8. 4 eps are relative to the output, for a single
    probability that outweighs the others. ``manual`` also rounds ``d_out @ v.T`` before it subtracts delta,
    and the two may cancel: in sums of few terms the largest probability counts. The largest of N normal
    scores is about ``sqrt(2 log(N))``, and the gradient of its probability is wrong by up to 2 eps.
    """
    eps = EPSILON[problem.dtype]
    row = math.sqrt(math.e / problem.seq_k)
    column = math.sqrt(math.e * problem.seq_q * problem.group) / problem.seq_k
    scores = problem.batch * problem.heads * problem.seq_q * problem.seq_k
    largest = math.exp(math.sqrt(2 * math.log(scores)) - 0.5) / problem.seq_k
    sizes = math.sqrt(2) * row, math.sqrt(2) * column, column
    return tuple(Tolerance(rtol=4 * eps, atol=eps * (16 * size + 2 * largest)) for size in sizes)


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
    tiles, or None."""
    del gpu
    if reason := refused(problem):
        return reason
    have = CUDA_TILES[problem.head_dim]
    if (tiles.block_m, tiles.stages) not in have:
        names = " and ".join(f"{m} x {n}s" for m, n in have)
        return f"its queries and stages for a head_dim of {problem.head_dim} are {names}"
    return None


def compile_weight(tiles: Flash) -> float:
    """Return a weight of the compile time: a thread's products per step."""
    return tiles.block * tiles.block_step / tiles.num_warps


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
        Provider(
            "triton_flash", "triton.py:flash", Flash, flash_fits, needs="sm_90", compile_weight=compile_weight
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
