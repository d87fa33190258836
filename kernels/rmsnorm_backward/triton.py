"""RMS normalization's backward pass in Triton: persistent programs, with rows in registers or in two passes.

The kernels run on the current CUDA device, take rows any distance apart and return contiguous tensors.
EVEN_N: no step reaches past a row's end, so its columns need no mask. Each program writes its sums of the
weight's gradient to a row of ``sums``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..norm_gradients import Gradients, launch_multi_pass, launch_persistent
from ..rmsnorm import EPS

_EPS = tl.constexpr(EPS)

_NAME = "rmsnorm_backward"


@triton.jit  # type: ignore[untyped-decorator]
def _persistent(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    d_x: tl.tensor,
    sums: tl.tensor,
    d_out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    d_out_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """A program takes BLOCK_SIZE / WIDTH rows at a time, keeps them in registers, and the sums over all
    steps; WIDTH >= columns. It keeps the weight, too, or if WIDE reads it twice in each step."""
    ROWS: tl.constexpr = BLOCK_SIZE // WIDTH
    column = tl.arange(0, WIDTH)[None, :]
    in_row = column < columns
    if not WIDE:
        w = tl.load(weight + column, mask=in_row, other=0.0)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        # 64 bits: row * x_stride passes 2**31 in a matrix of more than 2**31 elements.
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)[:, None]
        inside = row < rows if EVEN_N else (row < rows) & in_row
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
        if WIDE:
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_last")
        scale = tl.rsqrt(tl.sum(values * values, axis=1)[:, None] / columns + _EPS)
        mean = tl.sum(given * w.to(tl.float32) * values, axis=1)[:, None] * scale / columns
        if WIDE:
            # Another policy than above, so that Triton does not keep the first values.
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_first")
        normalized = values * scale
        result = scale * (given * w.to(tl.float32) - normalized * mean)
        tl.store(d_x + row * columns + column, result.to(d_x.dtype.element_ty), mask=inside)
        total += given * normalized
    sums += tl.program_id(0).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(total, axis=0)[None, :], mask=in_row)


@triton.jit  # type: ignore[untyped-decorator]
def _multi_pass(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    d_x: tl.tensor,
    sums: tl.tensor,
    d_out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    d_out_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program goes through each of its rows twice, BLOCK_SIZE columns at a time: for the row's sums, and
    for the gradients. It adds up its sums over the rows in device memory, where they stay in L2."""
    lane = tl.arange(0, BLOCK_SIZE)
    first = tl.program_id(0)
    sums += first.to(tl.int64) * columns
    for at in range(first, rows, tl.num_programs(0)):
        row = tl.cast(at, tl.int64)
        of_x, of_d_out, to = x + row * x_stride, d_out + row * d_out_stride, d_x + row * columns
        squares = tl.zeros([BLOCK_SIZE], tl.float32)
        products = tl.zeros([BLOCK_SIZE], tl.float32)
        for start in range(0, columns, BLOCK_SIZE):
            column = start + lane
            inside = None if EVEN_N else column < columns
            other = None if EVEN_N else 0.0
            values = tl.load(of_x + column, mask=inside, other=other, eviction_policy="evict_last").to(
                tl.float32
            )
            given = tl.load(of_d_out + column, mask=inside, other=other, eviction_policy="evict_last").to(
                tl.float32
            )
            w = tl.load(weight + column, mask=inside, other=other, eviction_policy="evict_last").to(
                tl.float32
            )
            squares += values * values
            products += given * w * values
        scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + _EPS)
        mean = tl.sum(products, axis=0) * scale / columns
        for start in range(0, columns, BLOCK_SIZE):
            column = start + lane
            inside = None if EVEN_N else column < columns
            values = tl.load(of_x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
            given = tl.load(of_d_out + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
            w = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
            normalized = values * scale
            result = scale * (given * w - normalized * mean)
            tl.store(to + column, result.to(d_x.dtype.element_ty), mask=inside)
            # At the program's first row the memory has undefined content.
            summed = (column < columns) & (at != first)
            total = tl.load(sums + column, mask=summed, other=0.0, eviction_policy="evict_last")
            tl.store(sums + column, total + given * normalized, mask=inside, eviction_policy="evict_last")
        tl.debug_barrier()  # another thread may read a sum at the next row


def persistent(
    d_out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    block_size: int,
    num_warps: int,
    num_stages: int,
    per_sm: int,
) -> Gradients:
    """Return the gradients for a matrix of at least one column, with ``per_sm`` programs on a multiprocessor.
    A program takes as many rows at a time as fit into ``block_size`` elements, at least one. Raises
    ValueError for rows too wide for registers."""
    inputs = (d_out, x, weight)
    return launch_persistent(_NAME, _persistent, 1, inputs, block_size, num_warps, num_stages, per_sm)


def multi_pass(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int, per_sm: int
) -> Gradients:
    """Return the gradients for a matrix of at least one column, with ``per_sm`` programs on a multiprocessor.
    A program goes through each of its rows twice, in steps of ``block_size`` columns."""
    return launch_multi_pass(_NAME, _multi_pass, 1, (d_out, x, weight), block_size, num_warps, per_sm)
