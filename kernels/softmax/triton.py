"""Softmax in Triton: register-resident rows, one or several per program, and online softmax in two passes.

The kernels run on the current CUDA device, take rows any distance apart and return a contiguous tensor.
EVEN_N: no step reaches past a row's end, so its columns need no mask. COLUMNS: the number of columns if it is
a constexpr, else None.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import check_dtype, check_matrix, launch_grid

from ..rows import constexpr_columns, constexpr_columns_of_few_rows, row_too_wide, vector_width


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_row(
    out: tl.tensor, x: tl.tensor, row_stride: tl.int64, columns: tl.int64, BLOCK_SIZE: tl.constexpr
) -> None:
    """A program loads one row, keeps it in registers, and stores it; BLOCK_SIZE >= columns."""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_SIZE)
    inside = column < columns
    values = tl.load(x + row * row_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    # tl.max skips NaN, but NaN minus anything is NaN, and the sum carries it to the whole row. So do
    # inf - inf, and -inf - -inf in a row of only -inf: no case needs a branch.
    numerator = tl.exp(values - tl.max(values, axis=0))
    result = numerator * (1.0 / tl.sum(numerator, axis=0))
    tl.store(out + row * columns + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax_tile(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    row_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program computes BLOCK_SIZE / WIDTH rows like ``_softmax_row``, so that short rows fill it;
    WIDTH >= columns."""
    if COLUMNS is not None:
        columns = COLUMNS
    POLICY: tl.constexpr = "evict_first" if BLOCK_SIZE > WIDTH else ""
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = row < rows if EVEN_N else (row < rows) & (column < columns)
    values = tl.load(
        x + row * row_stride + column, mask=inside, other=float("-inf"), eviction_policy=POLICY
    ).to(tl.float32)
    numerator = tl.exp(values - tl.max(values, axis=1)[:, None])
    result = numerator * (1.0 / tl.sum(numerator, axis=1)[:, None])
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
    VECTOR_WIDTH: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and stores it in the second pass.

    Each group of VECTOR_WIDTH neighbouring columns of the block keeps its maximum and its sum over the steps.
    The groups are reduced once, after the first pass: no step waits for a reduction across the block. The
    first pass loads with evict_last, so that the second finds the row in L2; the second with evict_first.
    """
    if COLUMNS is not None:
        columns = COLUMNS
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    out += row * columns
    group = tl.arange(0, BLOCK_SIZE // VECTOR_WIDTH) * VECTOR_WIDTH
    step_offset = group[:, None] + tl.arange(0, VECTOR_WIDTH)[None, :]

    # The lowest finite number instead of -inf: no maximum is -inf, and no numerator is exp(-inf + inf). A row
    # of only -inf then sums up to 0, and 0 / 0 gives the correct NaN.
    maximum = tl.full([BLOCK_SIZE // VECTOR_WIDTH], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([BLOCK_SIZE // VECTOR_WIDTH], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + step_offset
        if EVEN_N:
            values = tl.load(x + column, eviction_policy="evict_last").to(tl.float32)
        else:
            values = tl.load(
                x + column, mask=column < columns, other=float("-inf"), eviction_policy="evict_last"
            ).to(tl.float32)
        # A NaN never becomes the maximum, but it makes a numerator NaN, and with it the sum.
        highest = tl.max(values, axis=1)
        larger = tl.maximum(maximum, highest)
        if VECTOR_WIDTH == 1:
            # One of the sum's rescaling factor and the new numerator is always 1; this is the other one.
            numerator = tl.exp(-tl.abs(highest - maximum))
            total = tl.where(highest > maximum, total * numerator + 1.0, total + numerator)
        else:
            numerators = tl.exp(values - larger[:, None])
            total = total * tl.exp(maximum - larger) + tl.sum(numerators, axis=1)
        maximum = larger

    row_maximum = tl.max(maximum, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(maximum - row_maximum), axis=0)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + step_offset
        inside = None if EVEN_N else column < columns
        values = tl.load(x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        result = tl.exp(values - row_maximum) * scale
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def softmax_row(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """Return the softmax of a matrix of at least one column, one program per row. Raises ValueError for
    rows too wide for registers."""
    _check_resident(x)
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
    """Return the softmax of a matrix of at least one column. A program takes as many rows as fit into
    ``block_size`` elements, at least one. Raises ValueError for rows too wide for registers."""
    _check_resident(x)
    matrix, out = _prepare(x)
    width = triton.next_power_of_2(x.shape[1])
    block_size = max(block_size, width)
    if x.shape[0] > 0:
        _softmax_tile[launch_grid(triton.cdiv(x.shape[0], block_size // width))](
            out,
            matrix,
            matrix.stride(0),
            *x.shape,
            COLUMNS=constexpr_columns_of_few_rows(*x.shape),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            EVEN_N=x.shape[1] == width,
            num_warps=num_warps,
        )
    return out


def softmax_online(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the softmax of a matrix of at least one column, one program per row.

    A program goes through its row twice, in steps of ``block_size`` columns.
    """
    rows, out = _prepare(x)
    if rows.shape[0] > 0:
        _softmax_online[launch_grid(rows.shape[0])](
            out,
            rows,
            rows.stride(0),
            x.shape[1],
            COLUMNS=constexpr_columns(x.shape[1]),
            BLOCK_SIZE=block_size,
            VECTOR_WIDTH=vector_width(rows, block_size),
            EVEN_N=x.shape[1] % block_size == 0,
            num_warps=num_warps,
        )
    return out


def _prepare(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrix with contiguous rows, and a contiguous output for it."""
    check_matrix("softmax", x)
    check_dtype(x)
    rows = x if x.stride(1) == 1 else x.contiguous()
    return rows, torch.empty_like(x, memory_format=torch.contiguous_format)


def _check_resident(x: torch.Tensor) -> None:
    check_matrix("softmax", x)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
