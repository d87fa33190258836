"""The product of few rows in Triton: matrix-vector products without tensor cores.

All of b is read for a handful of multiplications an element, so that nothing but its reading counts. A
program goes through a strip of b that is ``block_n`` columns wide, ``block_k`` rows a step, and keeps the
products of each place of a step apart. They are added up once, at the end: no step waits for a sum across
threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.matmul.checks import check_ieee
from kernels.matmul.parameters import MOST_ROWS
from kernels.matmul.triton import empty_product
from kernels.matmul.triton_split_k import part_of, reduced
from kernels.tensors import launch_grid


@triton.jit  # type: ignore[untyped-decorator]
def _gemv(  # noqa: PLR0913, PLR0917  # what Triton reads
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
) -> None:
    """A program sums up one part of the products of BLOCK_N columns with all rows, of which ROWS is the next
    power of two."""
    part = tl.program_id(1)
    begin, end = part_of(part, k, SPLIT_K, BLOCK_K)
    column = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.arange(0, ROWS).to(tl.int64)
    depth = tl.arange(0, BLOCK_K).to(tl.int64)
    total = tl.zeros([ROWS, BLOCK_K, BLOCK_N], tl.float32)
    # Named, or nothing is loaded ahead: on its own Triton does that for tensor cores' tiles alone.
    for start in tl.range(begin, end, BLOCK_K, num_stages=STAGES):
        at = start + depth
        of_b = tl.load(
            b + at[:, None] * b_row + column[None, :] * b_column,
            mask=(at[:, None] < end) & (column[None, :] < n),
            other=0.0,
        ).to(tl.float32)
        of_a = tl.load(
            a + row[:, None] * a_row + at[None, :] * a_column,
            mask=(row[:, None] < m) & (at[None, :] < end),
            other=0.0,
        ).to(tl.float32)
        total += of_a[:, :, None] * of_b[None, :, :]
    sums = tl.sum(total, axis=1)
    to = out + part.to(tl.int64) * m * n + row[:, None] * n + column[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(row[:, None] < m) & (column[None, :] < n))


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
    """The product of at most ``MOST_ROWS`` rows, ``split_k`` programs a strip of ``block_n`` columns. Raises
    ValueError for inputs that are no such matrices and for an arithmetic other than ``ieee``."""
    check_ieee(a, b, arithmetic)
    (m, k), n = a.shape, b.shape[1]
    if m > MOST_ROWS:
        raise ValueError(f"takes at most {MOST_ROWS} rows of a, got {m}")
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
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return out if split_k == 1 else reduced(out, sums)
