"""The product of few rows in Triton: matrix-vector products without tensor cores.

All of b is read for a handful of multiplications per element, so only the reading time counts. A program goes
through a strip of b that is ``block_n`` columns wide, ``block_k`` rows per step. Each position of a step has
its own partial sum. They are reduced once, at the end: no step waits for a reduction across threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from .checks import check_ieee
from .parameters import MOST_ROWS
from .triton import empty_product
from .triton_split_k import part_of, reduced


@triton.jit  # type: ignore[untyped-decorator]
def _zeros(ROWS: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr) -> tl.tuple:
    """Return zeros, one tensor for each row."""
    sums = ()
    for _ in tl.static_range(ROWS):
        # Triton does not support tuple unpacking.
        sums = sums + (tl.zeros([FIRST, SECOND], tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
    return sums


@triton.jit  # type: ignore[untyped-decorator]
def _added(
    sums: tl.tuple,
    of_b: tl.tensor,
    a: tl.tensor,
    a_row: tl.tensor,
    m: tl.tensor,
    inside: tl.tensor,
    AXIS: tl.constexpr,
) -> tl.tuple:
    """Add, to the sums of each row, the products of a piece of b and that row's elements from ``a`` on."""
    found = ()
    for row in tl.static_range(len(sums)):
        of_a = tl.load(a + tl.cast(a_row, tl.int64) * row, mask=inside & (row < m), other=0.0).to(tl.float32)
        added = sums[row] + tl.expand_dims(of_a, 1 - AXIS) * of_b
        found = found + (added,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _gemv(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_row: tl.tensor,
    a_column: tl.tensor,
    b_row: tl.tensor,
    b_column: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    ALONG_K: tl.constexpr,
) -> None:
    """A program computes one part of the products of BLOCK_N columns with all rows. ROWS is the number of
    rows, rounded up to a power of two.

    ALONG_K: elements of b that are neighbours along k are neighbours in memory. A piece of b then has k as
    its last dimension, else n. Each row has its own sums, in the piece's shape and layout: they stay in the
    registers to which b was loaded. Sums of all rows in one tensor would have another layout, and each step
    would move b through shared memory.
    """
    part = tl.program_id(1)
    begin, end = part_of(part, k, SPLIT_K, BLOCK_K)
    column = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K).to(tl.int64)
    AXIS: tl.constexpr = 1 if ALONG_K else 0  # the dimension of k in a piece of b
    of_column = tl.expand_dims(column, AXIS)
    sums = _zeros(ROWS, BLOCK_N if ALONG_K else BLOCK_K, BLOCK_K if ALONG_K else BLOCK_N)
    # num_stages is explicit, because Triton by itself pipelines only loops with tensor cores.
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        at = start + depth
        of_k = tl.expand_dims(at, 1 - AXIS)
        of_b = tl.load(
            b + of_k * b_row + of_column * b_column, mask=(of_k < end) & (of_column < n), other=0.0
        ).to(tl.float32)
        sums = _added(sums, of_b, a + at * a_column, a_row, m, at < end, AXIS)
    to = out + part.to(tl.int64) * m * n + column
    for row in tl.static_range(ROWS):
        total = tl.sum(sums[row], axis=AXIS).to(out.dtype.element_ty)
        tl.store(to + row * n, total, mask=(column < n) & (row < m))


def gemv(
    a: torch.Tensor,
    b: torch.Tensor,
    arithmetic: str,
    block_n: int,
    block_k: int,
    split_k: int,
    num_warps: int,
    num_stages: int,
) -> torch.Tensor:
    """Return the product of at most ``MOST_ROWS`` rows, ``split_k`` programs per strip of ``block_n``
    columns. Raises ValueError for other inputs and for an arithmetic other than ``ieee``."""
    check_ieee(a, b, arithmetic)
    (m, k), n = a.shape, b.shape[1]
    if m > MOST_ROWS:
        raise ValueError(f"gemv needs a matrix of at most {MOST_ROWS} rows, got {m}")
    out = empty_product(a, b)
    if out.numel() == 0:
        return out
    sums = out if split_k == 1 else a.new_empty((split_k, m, n), dtype=torch.float32)
    (strips,) = launch_grid(triton.cdiv(n, block_n))
    _gemv[strips, split_k](
        sums,
        a,
        b,
        m,
        n,
        k,
        *a.stride(),
        *b.stride(),
        ROWS=triton.next_power_of_2(m),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        SPLIT_K=split_k,
        STAGES=num_stages,
        ALONG_K=b.stride(0) == 1,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out if split_k == 1 else reduced(out, sums)
