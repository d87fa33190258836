"""RMS normalization in Triton: rows held whole, one or several a program, and a row streamed in two passes.

All run on the current CUDA device, take rows any distance apart and give a contiguous tensor. WHOLE says that
no step reaches past a row's end, so that its columns need no mask; COLUMNS is their number where a kernel is
compiled for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.rmsnorm import EPS
from kernels.rows import known_columns, known_columns_of_few, row_too_wide
from kernels.tensors import check_affine, check_dtype, check_matrix, launch_grid

_EPS = tl.constexpr(EPS)

EARLY_WIDTH = tl.constexpr(8192)
"""Columns up to which a program holds the weight beside its rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _rmsnorm_tile(  # noqa: PLR0913, PLR0917  # what Triton reads
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    row_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """A program reads BLOCK_SIZE / WIDTH rows, holds them whole in registers, and writes them; WIDTH >=
    columns."""
    if COLUMNS is not None:
        columns = COLUMNS
    # The weight is asked for before the reduction, unless it would crowd the row out of registers.
    EARLY: tl.constexpr = WIDTH <= EARLY_WIDTH
    # Short rows leave the caches to the weight.
    POLICY: tl.constexpr = "evict_first" if BLOCK_SIZE > WIDTH else ""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    in_row = None if WHOLE else column < columns
    inside = row < rows if WHOLE else (row < rows) & in_row
    values = tl.load(x + row * row_stride + column, mask=inside, other=0.0, eviction_policy=POLICY).to(
        tl.float32
    )
    if EARLY:
        factor = tl.load(weight + column, mask=in_row)
    scale = tl.rsqrt(tl.sum(values * values, axis=1)[:, None] / columns + _EPS)
    if not EARLY:
        factor = tl.load(weight + column, mask=in_row)
    result = values * scale * factor.to(tl.float32)
    tl.store(
        out + row * columns + column, result.to(out.dtype.element_ty), mask=inside, eviction_policy=POLICY
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rmsnorm_online(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    row_stride: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and writes it in the second pass.

    Lane i of the block keeps the sum of the squares of columns i, i + BLOCK_SIZE, ...; they meet once, after
    the first pass. The row is marked to stay in the caches for the second, which marks it to go.
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
        if WHOLE:
            values = tl.load(x + column, eviction_policy="evict_last").to(tl.float32)
        else:
            values = tl.load(x + column, mask=column < columns, other=0.0, eviction_policy="evict_last").to(
                tl.float32
            )
        squares += values * values

    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + _EPS)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if WHOLE else column < columns
        values = tl.load(x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        factor = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        result = values * scale * factor
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def rmsnorm_row(x: torch.Tensor, weight: torch.Tensor, num_warps: int) -> torch.Tensor:
    """RMS normalization of a matrix of at least one column, a program a row, held whole. Raises ValueError
    for rows that no program holds."""
    return rmsnorm_tile(x, weight, 1, num_warps)


def rmsnorm_tile(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """RMS normalization of a matrix of at least one column, as many rows a program as ``block_size``
    elements hold, but one at least. Raises ValueError for rows that no program holds."""
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
            COLUMNS=known_columns_of_few(*x.shape),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            WHOLE=x.shape[1] == width,
            num_warps=num_warps,
        )
    return out


def rmsnorm_online(x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """RMS normalization of a matrix of at least one column, a program a row, in steps of ``block_size``."""
    _check(x, weight)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x if x.stride(1) == 1 else x.contiguous()
    if x.shape[0] > 0:
        _rmsnorm_online[launch_grid(x.shape[0])](
            out,
            x,
            weight.contiguous(),
            x.stride(0),
            x.shape[1],
            COLUMNS=known_columns(x.shape[1]),
            BLOCK_SIZE=block_size,
            WHOLE=x.shape[1] % block_size == 0,
            num_warps=num_warps,
        )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raises ValueError for inputs that are no matrix with a weight for its columns."""
    check_matrix("rmsnorm", x)
    check_dtype(x)
    check_affine("rmsnorm", "weight", weight, x)
