"""RMS normalization in Triton: register-resident rows, one or several per program, and rows in two passes.

The kernels run on the current CUDA device, take rows any distance apart and return a contiguous tensor.
EVEN_N: no step reaches past a row's end, so its columns need no mask. COLUMNS: the number of columns if it is
a constexpr, else None.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import check_affine, check_dtype, check_matrix, launch_grid

from ..rows import constexpr_columns, constexpr_columns_of_few_rows, row_too_wide
from . import EPS

_EPS = tl.constexpr(EPS)

EARLY_WIDTH = tl.constexpr(8192)
"""Columns up to which registers hold the weight beside the rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _rmsnorm_tile(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    row_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program loads BLOCK_SIZE / WIDTH rows, keeps them in registers, and stores them; WIDTH >= columns."""
    if COLUMNS is not None:
        columns = COLUMNS
    # The weight is loaded before the reduction, unless it would take the registers of the row.
    EARLY: tl.constexpr = WIDTH <= EARLY_WIDTH
    # Several short rows per program are evicted first, so that the weight stays in the caches.
    POLICY: tl.constexpr = "evict_first" if BLOCK_SIZE > WIDTH else ""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    in_row = None if EVEN_N else column < columns
    inside = row < rows if EVEN_N else (row < rows) & in_row
    values = tl.load(x + row * row_stride + column, mask=inside, other=0.0, eviction_policy=POLICY).to(
        tl.float32
    )
    if EARLY:
        w = tl.load(weight + column, mask=in_row)
    scale = tl.rsqrt(tl.sum(values * values, axis=1)[:, None] / columns + _EPS)
    if not EARLY:
        w = tl.load(weight + column, mask=in_row)
    result = values * scale * w.to(tl.float32)
    tl.store(
        out + row * columns + column, result.to(out.dtype.element_ty), mask=inside, eviction_policy=POLICY
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rmsnorm_two_pass(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    row_stride: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and stores it in the second pass.

    Element i of the block keeps the sum of the squares of columns i, i + BLOCK_SIZE, ... The sums are reduced
    once, after the first pass. The first pass loads with evict_last, so that the second pass finds the row in
    L2; the second pass loads with evict_first.
    """
    if COLUMNS is not None:
        columns = COLUMNS
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    out += row * columns
    lane = tl.arange(0, BLOCK_SIZE)

    squares = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        if EVEN_N:
            values = tl.load(x + column, eviction_policy="evict_last").to(tl.float32)
        else:
            values = tl.load(x + column, mask=column < columns, other=0.0, eviction_policy="evict_last").to(
                tl.float32
            )
        squares += values * values

    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + _EPS)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        values = tl.load(x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        result = values * scale * w
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def rmsnorm_row(x: torch.Tensor, weight: torch.Tensor, num_warps: int) -> torch.Tensor:
    """Return the RMS normalization of a matrix of at least one column, one program per row. Raises ValueError
    for rows too wide for registers."""
    return rmsnorm_tile(x, weight, 1, num_warps)


def rmsnorm_tile(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the RMS normalization of a matrix of at least one column. A program takes as many rows as fit
    into ``block_size`` elements, at least one. Raises ValueError for rows too wide for registers."""
    _check(x, weight)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x if x.stride(1) == 1 else x.contiguous()
    width = triton.next_power_of_2(x.shape[1])
    block_size = max(block_size, width)
    if x.shape[0] > 0:
        _rmsnorm_tile[launch_grid(triton.cdiv(x.shape[0], block_size // width))](
            out,
            x,
            weight.contiguous(),
            x.stride(0),
            *x.shape,
            COLUMNS=constexpr_columns_of_few_rows(*x.shape),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            EVEN_N=x.shape[1] == width,
            num_warps=num_warps,
        )
    return out


def rmsnorm_two_pass(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the RMS normalization of a matrix of at least one column, one program per row.

    A program goes through its row twice, in steps of ``block_size`` columns.
    """
    _check(x, weight)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x if x.stride(1) == 1 else x.contiguous()
    if x.shape[0] > 0:
        _rmsnorm_two_pass[launch_grid(x.shape[0])](
            out,
            x,
            weight.contiguous(),
            x.stride(0),
            x.shape[1],
            COLUMNS=constexpr_columns(x.shape[1]),
            BLOCK_SIZE=block_size,
            EVEN_N=x.shape[1] % block_size == 0,
            num_warps=num_warps,
        )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raises ValueError unless the inputs are a matrix with a weight for its columns."""
    check_matrix("rmsnorm", x)
    check_dtype(x)
    check_affine("rmsnorm", "weight", weight, x)
