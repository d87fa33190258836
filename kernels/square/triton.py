"""The square in Triton: one program per row, and one program for each block of the flat tensor.

Both run on the current CUDA device and return a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import check_dtype, launch_grid

from ..rows import row_too_wide


@triton.jit  # type: ignore[untyped-decorator]
def _square_rows(
    out: tl.tensor, x: tl.tensor, row_stride: tl.int64, columns: tl.int64, BLOCK_SIZE: tl.constexpr
) -> None:
    """A program squares one row, which it keeps in registers; BLOCK_SIZE >= columns."""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK_SIZE)
    inside = column < columns
    values = tl.load(x + row * row_stride + column, mask=inside).to(tl.float32)
    tl.store(out + row * columns + column, (values * values).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _square_flat(out: tl.tensor, x: tl.tensor, elements: tl.int64, BLOCK_SIZE: tl.constexpr) -> None:
    """A program squares BLOCK_SIZE neighbouring elements."""
    offset = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    inside = offset < elements
    values = tl.load(x + offset, mask=inside).to(tl.float32)
    tl.store(out + offset, (values * values).to(out.dtype.element_ty), mask=inside)


def square_rows(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """Return the square, one program per row of the last dimension. Rows may be any distance apart. Raises
    ValueError for rows too wide for registers."""
    if x.dim() > 0 and (reason := row_too_wide(x.shape[-1])):
        raise ValueError(reason)
    check_dtype(x)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel() == 0:
        return out
    columns = x.shape[-1] if x.dim() > 0 else 1
    rows = x.reshape(-1, columns)
    if columns > 1 and rows.stride(1) != 1:
        rows = rows.contiguous()
    _square_rows[launch_grid(rows.shape[0])](
        out,
        rows,
        rows.stride(0),
        columns,
        BLOCK_SIZE=triton.next_power_of_2(columns),
        num_warps=num_warps,
    )
    return out


def square_flat(x: torch.Tensor, block_size: int, num_warps: int) -> torch.Tensor:
    """Return the square, one program for each block of ``block_size`` elements."""
    check_dtype(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    grid = launch_grid(triton.cdiv(x.numel(), block_size))
    _square_flat[grid](out, x, x.numel(), BLOCK_SIZE=block_size, num_warps=num_warps)
    return out
