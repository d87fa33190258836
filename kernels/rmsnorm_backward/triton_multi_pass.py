"""RMS normalization's backward pass in Triton for rows of any length: two passes per row, then sums.

The kernel runs on the current CUDA device, takes rows any distance apart and returns a contiguous d_x.
EVEN_N: no step reaches past a row's end, so its columns need no mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..norm_gradients import Gradients
from ..rmsnorm import EPS
from ..sums_over_rows import launch_multi_pass

_EPS = tl.constexpr(EPS)

_NAME = "rmsnorm_backward"


@triton.jit  # type: ignore[untyped-decorator]
def _multi_pass(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    d_x: tl.tensor,
    statistics: tl.tensor,
    d_out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    d_out_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    BLOCK_SIZE: tl.constexpr,
    EVEN_N: tl.constexpr,
) -> None:
    """A program goes through its row twice, BLOCK_SIZE columns at a time: for the row's sums, and for d_x. It
    keeps the row's factor in ``statistics``."""
    lane = tl.arange(0, BLOCK_SIZE)
    row = tl.program_id(0).to(tl.int64)
    of_x, of_d_out, to = x + row * x_stride, d_out + row * d_out_stride, d_x + row * columns
    squares = tl.zeros([BLOCK_SIZE], tl.float32)
    products = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        other = None if EVEN_N else 0.0
        values = tl.load(of_x + column, mask=inside, other=other, eviction_policy="evict_last").to(tl.float32)
        given = tl.load(of_d_out + column, mask=inside, other=other, eviction_policy="evict_last").to(
            tl.float32
        )
        w = tl.load(weight + column, mask=inside, other=other, eviction_policy="evict_last").to(tl.float32)
        squares += values * values
        products += given * w * values
    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + _EPS)
    mean = tl.sum(products, axis=0) * scale / columns
    tl.store(statistics + row, scale)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        values = tl.load(of_x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        given = tl.load(of_d_out + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        result = scale * (given * w - values * scale * mean)
        tl.store(to + column, result.to(d_x.dtype.element_ty), mask=inside)


def multi_pass(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int, per_sm: int
) -> Gradients:
    """Return the gradients for a matrix of at least one column. A program goes through a row twice, in steps
    of ``block_size`` columns; then ``per_sm`` programs on each multiprocessor sum up over the rows."""
    return launch_multi_pass(_NAME, _multi_pass, 1, (d_out, x, weight), block_size, num_warps, per_sm)
