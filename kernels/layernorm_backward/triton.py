"""Layer normalization's backward pass in Triton: persistent programs, with rows in registers.

The kernels run on the current CUDA device, take rows any distance apart and return contiguous tensors.
EVEN_N: no step reaches past a row's end, so its columns need no mask. Each program writes its sums of the
weight's and the bias's gradients to a row of each half of ``sums``. An element of the row is first subtracted
from all others: the mean of large numbers that are close to each other would else be rounded like their sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..layernorm import EPS
from ..norm_gradients import Gradients, launch_persistent

_EPS = tl.constexpr(EPS)

_NAME = "layernorm_backward"


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
    steps; WIDTH >= columns. It keeps the weight, too, or if WIDE reads all inputs twice in each step."""
    ROWS: tl.constexpr = BLOCK_SIZE // WIDTH
    column = tl.arange(0, WIDTH)[None, :]
    in_row = column < columns
    if not WIDE:
        w = tl.load(weight + column, mask=in_row, other=0.0)
    of_weight = tl.zeros([ROWS, WIDTH], tl.float32)
    of_bias = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        # 64 bits: row * x_stride passes 2**31 in a matrix of more than 2**31 elements.
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)[:, None]
        inside = row < rows if EVEN_N else (row < rows) & in_row
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        if not WIDE:
            given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
        origin = tl.load(x + row * x_stride, mask=row < rows, other=0.0).to(tl.float32)
        values -= origin
        if not EVEN_N:
            values = tl.where(in_row, values, 0.0)
        shift = tl.sum(values, axis=1)[:, None] / columns
        values -= shift
        if not EVEN_N:
            values = tl.where(in_row, values, 0.0)
        scale = tl.rsqrt(tl.sum(values * values, axis=1)[:, None] / columns + _EPS)
        if WIDE:
            given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_last")
        mean = tl.sum(given * w.to(tl.float32), axis=1)[:, None] / columns
        of_normalized = tl.sum(given * w.to(tl.float32) * values, axis=1)[:, None] * scale / columns
        if WIDE:
            # Another policy than above, so that Triton does not keep the first values.
            given = tl.load(
                d_out + row * d_out_stride + column, mask=inside, other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_first")
            values = tl.load(
                x + row * x_stride + column, mask=inside, other=0.0, eviction_policy="evict_first"
            ).to(tl.float32)
            values -= origin + shift
        normalized = values * scale
        result = scale * (given * w.to(tl.float32) - mean - normalized * of_normalized)
        tl.store(d_x + row * columns + column, result.to(d_x.dtype.element_ty), mask=inside)
        of_weight += given * normalized
        of_bias += given
    sums += tl.program_id(0).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(of_weight, axis=0)[None, :], mask=in_row)
    sums += tl.num_programs(0).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(of_bias, axis=0)[None, :], mask=in_row)


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
    return launch_persistent(_NAME, _persistent, 2, inputs, block_size, num_warps, num_stages, per_sm)
