"""Softmax's backward pass in Triton: register-resident rows, one or several per program, and rows in two
passes.

The kernels run on the current CUDA device, take rows any distance apart and return a contiguous tensor.
EVEN_N: no step reaches past a row's end, so its columns need no mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid

from ..gradient_inputs import check_gradient, with_rows
from ..rows import row_too_wide


@triton.jit  # type: ignore[untyped-decorator]
def _tile(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    d_x: tl.tensor,
    d_out: tl.tensor,
    out: tl.tensor,
    d_out_stride: tl.int64,
    out_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program loads BLOCK_SIZE / WIDTH rows, keeps them in registers, and stores them; WIDTH >= columns."""
    # 64 bits: row * out_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = row < rows if EVEN_N else (row < rows) & (column < columns)
    given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
    values = tl.load(out + row * out_stride + column, mask=inside, other=0.0).to(tl.float32)
    result = (given - tl.sum(given * values, axis=1)[:, None]) * values
    tl.store(d_x + row * columns + column, result.to(d_x.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _two_pass(
    d_x: tl.tensor,
    d_out: tl.tensor,
    out: tl.tensor,
    d_out_stride: tl.int64,
    out_stride: tl.int64,
    columns: tl.int64,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and stores it in the second pass.

    Element i of the block sums up the products of columns i, i + BLOCK_SIZE, ... The first pass loads with
    evict_last, so that the second pass finds the row in L2; the second pass loads with evict_first.
    """
    row = tl.program_id(0).to(tl.int64)
    d_out += row * d_out_stride
    out += row * out_stride
    d_x += row * columns
    lane = tl.arange(0, BLOCK_SIZE)
    products = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        other = None if EVEN_N else 0.0
        given = tl.load(d_out + column, mask=inside, other=other, eviction_policy="evict_last")
        values = tl.load(out + column, mask=inside, other=other, eviction_policy="evict_last")
        products += given.to(tl.float32) * values.to(tl.float32)
    total = tl.sum(products, axis=0)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        given = tl.load(d_out + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        values = tl.load(out + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        result = (given - total) * values
        tl.store(d_x + column, result.to(d_x.dtype.element_ty), mask=inside)


def tile(d_out: torch.Tensor, out: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the gradient for a matrix of at least one column. A program takes as many rows as fit into
    ``block_size`` elements, at least one. Raises ValueError for rows too wide for registers."""
    check_gradient("softmax_backward", d_out, out)
    rows, columns = out.shape
    if reason := row_too_wide(columns):
        raise ValueError(reason)
    d_x = torch.empty_like(out, memory_format=torch.contiguous_format)
    d_out, out = with_rows(d_out), with_rows(out)
    width = triton.next_power_of_2(columns)
    block_size = max(block_size, width)
    if rows > 0:
        _tile[launch_grid(triton.cdiv(rows, block_size // width))](
            *(d_x, d_out, out, d_out.stride(0), out.stride(0), rows, columns),
            WIDTH=width,
            BLOCK_SIZE=block_size,
            EVEN_N=columns == width,
            num_warps=num_warps,
        )
    return d_x


def two_pass(d_out: torch.Tensor, out: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the gradient for a matrix of at least one column, one program per row, which goes through its
    row twice, in steps of ``block_size`` columns."""
    check_gradient("softmax_backward", d_out, out)
    rows, columns = out.shape
    d_x = torch.empty_like(out, memory_format=torch.contiguous_format)
    d_out, out = with_rows(d_out), with_rows(out)
    if rows > 0:
        _two_pass[launch_grid(rows)](
            *(d_x, d_out, out, d_out.stride(0), out.stride(0), columns),
            BLOCK_SIZE=block_size,
            EVEN_N=columns % block_size == 0,
            num_warps=num_warps,
        )
    return d_x
