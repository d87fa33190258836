"""Layer normalization in Triton: register-resident rows, one or several per program, and rows in two passes.

The kernels run on the current CUDA device, take rows any distance apart and return a contiguous tensor.
EVEN_N: no step reaches past a row's end, so its columns need no mask. COLUMNS: the number of columns if it is
a constexpr, else None.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import check_affine, check_dtype, check_matrix, launch_grid

from ..rows import constexpr_columns, constexpr_columns_of_few_rows, row_too_wide, vector_width
from . import EPS

_EPS = tl.constexpr(EPS)

EARLY_WIDTH = tl.constexpr(8192)
"""Columns up to which registers hold weight and bias besides the rows."""


@triton.jit  # type: ignore[untyped-decorator]
def _layernorm_tile(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
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
    # Weight and bias are loaded before the reductions, unless they would take the registers of the row.
    EARLY: tl.constexpr = WIDTH <= EARLY_WIDTH
    # Several short rows per program are evicted first, so that weight and bias stay in the caches.
    POLICY: tl.constexpr = "evict_first" if BLOCK_SIZE > WIDTH else ""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    in_row = None if EVEN_N else column < columns
    inside = row < rows if EVEN_N else (row < rows) & in_row
    values = tl.load(x + row * row_stride + column, mask=inside, other=0.0, eviction_policy=POLICY).to(
        tl.float32
    )
    # Subtract the row's first element: the mean of large numbers that are close to each other would else be
    # rounded like their sum.
    values -= tl.load(x + row * row_stride, mask=row < rows, other=0.0).to(tl.float32)
    if EARLY:
        w = tl.load(weight + column, mask=in_row)
        b = tl.load(bias + column, mask=in_row)
    if EVEN_N:
        values -= tl.sum(values, axis=1)[:, None] / columns
    else:
        values = tl.where(inside, values, 0.0)
        values = tl.where(inside, values - tl.sum(values, axis=1)[:, None] / columns, 0.0)
    variance = tl.sum(values * values, axis=1)[:, None] / columns
    scale = tl.rsqrt(variance + _EPS)
    if not EARLY:
        w = tl.load(weight + column, mask=in_row)
        b = tl.load(bias + column, mask=in_row)
    result = values * scale * w.to(tl.float32) + b.to(tl.float32)
    tl.store(
        out + row * columns + column, result.to(out.dtype.element_ty), mask=inside, eviction_policy=POLICY
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_step(
    distance: tl.tensor, mean: tl.tensor, squares: tl.tensor, part: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Return each group's mean and its sum of squared distances to the mean, after one more step.

    ``distance``: the step's elements minus the group's mean so far. ``part``: the reciprocal of the number of
    the group's elements, including this step. The distances of the earlier elements sum up to 0, so the mean
    moves by the sum of the new distances times ``part``. The squares about the old mean exceed those about
    the new mean by the square of that sum times ``part``. With one element per step this is Welford's update,
    "Note on a Method for Calculating Corrected Sums of Squares and Products", 1962.
    """
    total = tl.sum(distance, axis=1)
    shift = total * part
    return mean + shift, squares + (tl.sum(distance * distance, axis=1) - total * shift)


@triton.jit  # type: ignore[untyped-decorator]
def _layernorm_online(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    row_stride: tl.int64,
    columns: tl.int64,
    COLUMNS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    VECTOR_WIDTH: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and stores it in the second pass.

    Each group of VECTOR_WIDTH neighbouring columns of the block keeps its mean over the steps and the sum of
    the squared distances to it. The groups are reduced once, after the first pass (Chan, Golub and LeVeque,
    "Algorithms for Computing the Sample Variance", 1983). The first pass loads with evict_last, so that the
    second pass finds the row in L2; the second pass loads with evict_first.
    """
    if COLUMNS is not None:
        columns = COLUMNS
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    out += row * columns
    group = tl.arange(0, BLOCK_SIZE // VECTOR_WIDTH) * VECTOR_WIDTH
    step_offset = group[:, None] + tl.arange(0, VECTOR_WIDTH)[None, :]

    # A group's mean starts as its first element, so that the mean of equal numbers is exact even where their
    # sum would be rounded.
    mean = tl.load(x + group, mask=group < columns, other=0.0, eviction_policy="evict_last").to(tl.float32)
    squares = tl.zeros([BLOCK_SIZE // VECTOR_WIDTH], tl.float32)
    whole = columns // BLOCK_SIZE * BLOCK_SIZE
    count = 0.0
    for start in range(0, whole, BLOCK_SIZE):
        count += VECTOR_WIDTH
        values = tl.load(x + start + step_offset, eviction_policy="evict_last").to(tl.float32)
        mean, squares = _add_step(values - mean[:, None], mean, squares, 1.0 / count)
    if not EVEN_N:
        rest = columns - whole
        inside = step_offset < rest
        values = tl.load(x + whole + step_offset, mask=inside, other=0.0, eviction_policy="evict_last").to(
            tl.float32
        )
        distance = tl.where(inside, values - mean[:, None], 0.0)
        count += tl.minimum(tl.maximum(rest - group, 0), VECTOR_WIDTH).to(tl.float32)
        mean, squares = _add_step(distance, mean, squares, 1.0 / tl.maximum(count, 1.0))

    # The rounded mean of the means, and its error, so that the mean of equal numbers is exact.
    near = tl.sum(count / columns * mean, axis=0)
    mean = tl.where(count > 0.0, mean - near, 0.0)
    offset = tl.sum(count * mean, axis=0) / columns
    variance = tl.sum(squares + count * (mean - offset) * (mean - offset), axis=0) / columns
    row_mean = near + offset
    scale = tl.rsqrt(variance + _EPS)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + step_offset
        inside = None if EVEN_N else column < columns
        values = tl.load(x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        b = tl.load(bias + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        result = (values - row_mean) * scale * w + b
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def layernorm_row(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, num_warps: int) -> torch.Tensor:
    """Return the layer normalization of a matrix of at least one column, one program per row. Raises
    ValueError for rows too wide for registers."""
    return layernorm_tile(x, weight, bias, 1, num_warps)


def layernorm_tile(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """Return the layer normalization of a matrix of at least one column. A program takes as many rows as fit
    into ``block_size`` elements, at least one. Raises ValueError for rows too wide for registers."""
    _check(x, weight, bias)
    if reason := row_too_wide(x.shape[1]):
        raise ValueError(reason)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x if x.stride(1) == 1 else x.contiguous()
    width = triton.next_power_of_2(x.shape[1])
    block_size = max(block_size, width)
    if x.shape[0] > 0:
        _layernorm_tile[launch_grid(triton.cdiv(x.shape[0], block_size // width))](
            out,
            x,
            weight.contiguous(),
            bias.contiguous(),
            x.stride(0),
            *x.shape,
            COLUMNS=constexpr_columns_of_few_rows(*x.shape),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            EVEN_N=x.shape[1] == width,
            num_warps=num_warps,
        )
    return out


def layernorm_online(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """Return the layer normalization of a matrix of at least one column, one program per row.

    A program goes through its row twice, in steps of ``block_size`` columns.
    """
    _check(x, weight, bias)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x if x.stride(1) == 1 else x.contiguous()
    if x.shape[0] > 0:
        _layernorm_online[launch_grid(x.shape[0])](
            out,
            x,
            weight.contiguous(),
            bias.contiguous(),
            x.stride(0),
            x.shape[1],
            COLUMNS=constexpr_columns(x.shape[1]),
            BLOCK_SIZE=block_size,
            VECTOR_WIDTH=vector_width(x, block_size),
            EVEN_N=x.shape[1] % block_size == 0,
            num_warps=num_warps,
        )
    return out


def _check(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Raises ValueError unless the inputs are a matrix with a weight and a bias for its columns."""
    check_matrix("layernorm", x)
    check_dtype(x)
    check_affine("layernorm", "weight", weight, x)
    check_affine("layernorm", "bias", bias, x)
