"""RMS normalization's backward pass in Triton: persistent programs, with rows in registers.

The kernels run on the current CUDA device, take rows any distance apart and return contiguous tensors.
EVEN_N: no step reaches past a row's end, so its columns need no mask. Each program writes its sums of the
weight's gradient to a row of ``sums``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..norm_gradients import Gradients, launch_persistent
from ..rmsnorm import EPS

_EPS = tl.constexpr(EPS)

_NAME = "rmsnorm_backward"


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
    steps; WIDTH >= columns. It keeps the weight, too, or if WIDE reads it twice in each step."""
    ROWS: tl.constexpr = BLOCK_SIZE // WIDTH
    column = tl.arange(0, WIDTH)[None, :]
    in_row = column < columns
    if not WIDE:
        w = tl.load(weight + column, mask=in_row, other=0.0)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        # 64 bits: row * x_stride passes 2**31 in a matrix of more than 2**31 elements.
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)[:, None]
        inside = row < rows if EVEN_N else (row < rows) & in_row
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
        if WIDE:
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_last")
        scale = tl.rsqrt(tl.sum(values * values, axis=1)[:, None] / columns + _EPS)
        mean = tl.sum(given * w.to(tl.float32) * values, axis=1)[:, None] * scale / columns
        if WIDE:
            # Another policy than above, so that Triton does not keep the first values.
            w = tl.load(weight + column, mask=in_row, other=0.0, eviction_policy="evict_first")
        normalized = values * scale
        result = scale * (given * w.to(tl.float32) - normalized * mean)
        tl.store(d_x + row * columns + column, result.to(d_x.dtype.element_ty), mask=inside)
        total += given * normalized
    sums += tl.program_id(0).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(total, axis=0)[None, :], mask=in_row)


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
    return launch_persistent(_NAME, _persistent, 1, inputs, block_size, num_warps, num_stages, per_sm)
