"""Layer normalization in Triton: rows held whole, one or several a program, and a row streamed in two passes.

All run on the current CUDA device, take rows any distance apart and give a contiguous tensor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.contract import launch_grid
from kernels.layernorm import EPS

_EPS = tl.constexpr(EPS)


@triton.jit  # type: ignore[untyped-decorator]
def _layernorm_tile(  # noqa: PLR0913, PLR0917  # what Triton reads
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    row_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """A program reads BLOCK_SIZE / WIDTH rows, holds them whole in registers, and writes them; WIDTH >=
    columns."""
    # 64 bits: row * row_stride passes 2**31 in a matrix of more than 2**31 elements.
    row = tl.program_id(0).to(tl.int64) * (BLOCK_SIZE // WIDTH) + tl.arange(0, BLOCK_SIZE // WIDTH)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    inside = (row < rows) & (column < columns)
    values = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    # Distances to the row's first element, not elements: the mean of large numbers close to each other is not
    # rounded as their sum would be.
    near = tl.load(x + row * row_stride, mask=row < rows, other=0.0).to(tl.float32)
    values = tl.where(inside, values - near, 0.0)
    values = tl.where(inside, values - tl.sum(values, axis=1)[:, None] / columns, 0.0)
    variance = tl.sum(values * values, axis=1)[:, None] / columns
    scale = tl.rsqrt(variance + _EPS)
    factor = tl.load(weight + column, mask=column < columns).to(tl.float32)
    shift = tl.load(bias + column, mask=column < columns).to(tl.float32)
    result = values * scale * factor + shift
    tl.store(out + row * columns + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _layernorm_online(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    row_stride: tl.int64,
    columns: tl.int64,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    """A program reads one row twice, BLOCK_SIZE columns at a time, and writes it in the second pass.

    Lane i of the block keeps the mean and the squared distances to it of columns i, i + BLOCK_SIZE, ...,
    updated as Welford does, "Note on a Method for Calculating Corrected Sums of Squares and Products", 1962;
    they meet once, after the first pass.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    out += row * columns
    lane = tl.arange(0, BLOCK_SIZE)

    mean = tl.zeros([BLOCK_SIZE], tl.float32)
    squares = tl.zeros([BLOCK_SIZE], tl.float32)
    count = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = column < columns
        values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        count += tl.where(inside, 1.0, 0.0)
        delta = tl.where(inside, values - mean, 0.0)
        mean += delta / tl.maximum(count, 1.0)
        squares += delta * tl.where(inside, values - mean, 0.0)

    # Lane 0 always has a mean; distances to it are small where the numbers lie close to each other.
    near = tl.sum(tl.where(lane == 0, mean, 0.0), axis=0)
    row_mean = near + tl.sum(count * (mean - near), axis=0) / columns
    distance = mean - row_mean
    variance = tl.sum(squares + count * distance * distance, axis=0) / columns
    scale = tl.rsqrt(variance + _EPS)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = column < columns
        values = tl.load(x + column, mask=inside).to(tl.float32)
        factor = tl.load(weight + column, mask=inside).to(tl.float32)
        shift = tl.load(bias + column, mask=inside).to(tl.float32)
        result = (values - row_mean) * scale * factor + shift
        tl.store(out + column, result.to(out.dtype.element_ty), mask=inside)


def layernorm_tile(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """Layer normalization of a matrix, as many rows a program as ``block_size`` elements hold, but one at
    least."""
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
            WIDTH=width,
            BLOCK_SIZE=block_size,
            num_warps=num_warps,
        )
    return out


def layernorm_online(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, block_size: int, num_warps: int
) -> torch.Tensor:
    """Layer normalization of a matrix, a program a row, in steps of ``block_size``."""
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
            BLOCK_SIZE=block_size,
            num_warps=num_warps,
        )
    return out
