"""Softmax in Triton: rows held whole, one or several a program, and a row streamed with a running maximum and
sum.

All run on the current CUDA device, take rows any distance apart and give a contiguous tensor. WHOLE says that
no step reaches past a row's end, so that its columns need no mask; COLUMNS is their number where a kernel is
compiled for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.rows import elements_together, known_columns, known_columns_of_few, row_too_wide
from kernels.tensors import check_dtype, check_matrix, launch_grid


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_row(
    out: tl.tensor, x: tl.tensor, row_stride: tl.int64, columns: tl.int64, BLOCK_SIZE: tl.constexpr
) -> None:
    """A program reads one row, holds it whole in registers, and writes it; BLOCK_SIZE >= columns."""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_SIZE)
    inside = column < columns
    values = tl.load(x + row * row_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    # tl.max skips NaN, but NaN minus anything is NaN and the sum carries it to the whole row. So do
    # inf - inf, and -inf - -inf in a row of nothing else: no case needs a branch.
    weight = tl.exp(values - tl.max(values, axis=0))
    result = weight * (1.0 / tl.sum(weight, axis=0))
    tl.store(out + row * columns + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_tile(  # noqa: PLR0913, PLR0917  # what Triton reads
    out: tl.tensor,
    x: tl.tensor,
    row_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """``_softmax_row`` for BLOCK_SIZE / WIDTH rows a program, so that short rows fill it; WIDTH >=
    columns."""
    if COLUMNS is not None:
        columns = COLUMNS
    POLICY: tl.constexpr = "evict_first" if BLOCK_SIZE > WIDTH else ""
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = row < rows if WHOLE else (row < rows) & (column < columns)
    values = tl.load(
        x + row * row_stride + column, mask=inside, other=float("-inf"), eviction_policy=POLICY
    ).to(tl.float32)
    weight = tl.exp(values - tl.max(values, axis=1)[:, None])
    result = weight * (1.0 / tl.sum(weight, axis=1)[:, None])
    tl.store(
        out + row * columns + column, result.to(out.dtype.element_ty), mask=inside, eviction_policy=POLICY
    )


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_online(
    out: tl.tensor,
    x: tl.tensor,
    row_stride: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and writes it in the second pass.

    Each GROUP of neighbouring columns of the block, a thread's where it has so many, keeps the maximum and
    the sum of its steps; they meet once, after the first pass, so that no step waits for a reduction across
    the block. The row is marked to stay in the caches for the second pass, which marks it to go.
    """
    if COLUMNS is not None:
        columns = COLUMNS
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    out += row * columns
    place = (tl.arange(0, BLOCK_SIZE // GROUP) * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]

    # The lowest finite number, not -inf: so a maximum is never -inf, and a weight never exp(-inf + inf).
    # A row of nothing but -inf then sums to 0, and 0 / 0 is the NaN that belongs there.
    maximum = tl.full([BLOCK_SIZE // GROUP], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([BLOCK_SIZE // GROUP], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + place
        if WHOLE:
            values = tl.load(x + column, eviction_policy="evict_last").to(tl.float32)
        else:
            values = tl.load(
                x + column, mask=column < columns, other=float("-inf"), eviction_policy="evict_last"
            ).to(tl.float32)
        # A NaN is never the larger and so never a maximum, but it makes a weight NaN, and the sum with it.
        highest = tl.max(values, axis=1)
        larger = tl.maximum(maximum, highest)
        if GROUP == 1:
            # Of the factor that rescales the sum and the new weight one is always 1, the other this.
            weight = tl.exp(-tl.abs(highest - maximum))
            total = tl.where(highest > maximum, total * weight + 1.0, total + weight)
        else:
            weights = tl.exp(values - larger[:, None])
            total = total * tl.exp(maximum - larger) + tl.sum(weights, axis=1)
        maximum = larger

    row_maximum = tl.max(maximum, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(maximum - row_maximum), axis=0)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + place
        inside = None if WHOLE else column < columns
        values = tl.load(x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        result = tl.exp(values - row_maximum) * scale
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def softmax_row(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """Softmax of a matrix of at least one column, a program a row, held whole. Raises ValueError for rows
    that no program holds."""
    _check_held(x)
    columns = x.shape[1]
    rows, out = _prepare(x)
    if rows.shape[0] > 0:
        _softmax_row[launch_grid(rows.shape[0])](
            out,
            rows,
            rows.stride(0),
            columns,
            BLOCK_SIZE=triton.next_power_of_2(columns),
            num_warps=num_warps,
        )
    return out


def softmax_tile(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Softmax of a matrix of at least one column, as many rows a program as ``block_size`` elements hold, but
    one at least. Raises ValueError for rows that no program holds."""
    _check_held(x)
    matrix, out = _prepare(x)
    width = triton.next_power_of_2(x.shape[1])
    block_size = max(block_size, width)
    if x.shape[0] > 0:
        _softmax_tile[launch_grid(triton.cdiv(x.shape[0], block_size // width))](
            out,
            matrix,
            matrix.stride(0),
            *x.shape,
            COLUMNS=known_columns_of_few(*x.shape),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            WHOLE=x.shape[1] == width,
            num_warps=num_warps,
        )
    return out


def softmax_online(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Softmax of a matrix of at least one column, a program a row, in steps of ``block_size``."""
    rows, out = _prepare(x)
    if rows.shape[0] > 0:
        _softmax_online[launch_grid(rows.shape[0])](
            out,
            rows,
            rows.stride(0),
            x.shape[1],
            COLUMNS=known_columns(x.shape[1]),
            BLOCK_SIZE=block_size,
            GROUP=elements_together(rows, block_size),
            WHOLE=x.shape[1] % block_size == 0,
            num_warps=num_warps,
        )
    return out


def _prepare(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix with its rows' elements side by side, and a contiguous output for it."""
    check_matrix("softmax", x)
    check_dtype(x)
    rows = x if x.stride(1) == 1 else x.contiguous()
    return rows, torch.empty_like(x, memory_format=torch.contiguous_format)


def _check_held(x: torch.Tensor) -> None:
    check_matrix("softmax", x)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
