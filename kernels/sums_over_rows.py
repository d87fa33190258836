"""The backward passes of norms in two steps: a Triton program per row, and sums over all rows."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from kernel_pipeline.tensors import launch_grid, persistent_programs

from .norm_gradients import Gradients, Inputs, checked
from .partial_sums import added

TILE = (8, 128)
"""Rows and columns that a program sums up at a time."""


def launch_multi_pass(
    name: str,
    kernel: Any,
    sums: int,
    inputs: Inputs,
    block_size: int,
    num_warps: int,
    per_sm: int,
) -> Gradients:
    """Return d_x, and the gradients of the weight and, with two ``sums``, of the bias.

    A program of ``kernel`` goes through a row several times, ``block_size`` columns at a time, for d_x and
    the row's statistics. Then about ``per_sm`` programs on each multiprocessor sum up over the rows. Raises
    ValueError for inputs that do not fit together.
    """
    d_out, x, weight = checked(name, inputs)
    rows, columns = x.shape
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    if rows == 0:
        return d_x, *(torch.zeros_like(weight) for _ in range(sums))
    statistics = torch.empty((sums, rows), dtype=torch.float32, device=x.device)
    kernel[launch_grid(rows)](
        *(d_x, statistics, d_out, x, weight, d_out.stride(0), x.stride(0), rows, columns),
        BLOCK_SIZE=block_size,
        EVEN_N=columns % block_size == 0,
        num_warps=num_warps,
    )
    return d_x, *_summed(d_out, x, statistics, persistent_programs(x, per_sm))


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    sums: tl.tensor,
    d_out: tl.tensor,
    x: tl.tensor,
    statistics: tl.tensor,
    d_out_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTRED: tl.constexpr,
) -> None:
    """A program sums up d_out times the normalized x, and if CENTRED d_out, over every n-th ROWS rows of
    COLUMNS columns. ``statistics`` has a factor for each row, and if CENTRED how far the row's mean is from
    its first element."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    in_row = column < columns
    of_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)[:, None]
        exists = row < rows
        inside = exists & in_row
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(statistics + row, mask=exists, other=0.0)
        if CENTRED:
            values -= tl.load(x + row * x_stride, mask=exists, other=0.0).to(tl.float32)
            values -= tl.load(statistics + rows + row, mask=exists, other=0.0)
            of_bias += given
        of_weight += given * (values * scale)
    sums += tl.program_id(1).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(of_weight, axis=0)[None, :], mask=in_row)
    if CENTRED:
        sums += tl.num_programs(1).to(tl.int64) * columns
        tl.store(sums + column, tl.sum(of_bias, axis=0)[None, :], mask=in_row)


def _summed(
    d_out: torch.Tensor, x: torch.Tensor, statistics: torch.Tensor, programs: int
) -> tuple[torch.Tensor, ...]:
    """Return the sum over the rows of d_out times the normalized x, and if ``statistics`` has two rows that
    of d_out, in x's dtype. About ``programs`` programs share the rows and columns of both matrices."""
    rows, columns = x.shape
    blocks = triton.cdiv(columns, TILE[1])
    parts = max(1, min(triton.cdiv(rows, TILE[0]), programs // blocks))
    count = statistics.shape[0]
    sums = torch.empty((count, parts, columns), dtype=torch.float32, device=x.device)
    _sum_rows[(blocks, parts)](
        *(sums, d_out, x, statistics, d_out.stride(0), x.stride(0), rows, columns),
        ROWS=TILE[0],
        COLUMNS=TILE[1],
        CENTRED=count == 2,
        num_warps=4,
    )
    return added(sums, x.dtype)
