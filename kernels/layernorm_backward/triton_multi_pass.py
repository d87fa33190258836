"""Layer normalization's backward pass in Triton for rows of any length: three passes per row, then sums.

The kernel runs on the current CUDA device, takes rows any distance apart and returns a contiguous d_x.
EVEN_N: no step reaches past a row's end, so its columns need no mask.

An element of the row is first subtracted from all others: the mean of large numbers that are close to each
other would else be rounded like their sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..layernorm import EPS
from ..norm_gradients import Gradients
from ..sums_over_rows import launch_multi_pass

_EPS = tl.constexpr(EPS)

_NAME = "layernorm_backward"


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
    """A program goes through its row three times, BLOCK_SIZE columns at a time: for the mean, for the row's
    other sums, and for d_x. It keeps the row's factor in ``statistics``, and its mean less ``origin``."""
    lane = tl.arange(0, BLOCK_SIZE)
    row = tl.program_id(0).to(tl.int64)
    of_x, of_d_out, to = x + row * x_stride, d_out + row * d_out_stride, d_x + row * columns
    origin = tl.load(of_x).to(tl.float32)
    distances = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        values = tl.load(of_x + column, mask=inside, eviction_policy="evict_last").to(tl.float32) - origin
        distances += values if EVEN_N else tl.where(inside, values, 0.0)
    shift = tl.sum(distances, axis=0) / columns
    squares = tl.zeros([BLOCK_SIZE], tl.float32)
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    products = tl.zeros([BLOCK_SIZE], tl.float32)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        other = None if EVEN_N else 0.0
        values = tl.load(of_x + column, mask=inside, eviction_policy="evict_last").to(tl.float32) - origin
        values -= shift
        if not EVEN_N:
            values = tl.where(inside, values, 0.0)
        given = tl.load(of_d_out + column, mask=inside, other=other, eviction_policy="evict_last").to(
            tl.float32
        )
        w = tl.load(weight + column, mask=inside, other=other, eviction_policy="evict_last").to(tl.float32)
        squares += values * values
        total += given * w
        products += given * w * values
    scale = tl.rsqrt(tl.sum(squares, axis=0) / columns + _EPS)
    mean = tl.sum(total, axis=0) / columns
    of_normalized = tl.sum(products, axis=0) * scale / columns
    tl.store(statistics + row, scale)
    tl.store(statistics + rows + row, shift)
    for start in range(0, columns, BLOCK_SIZE):
        column = start + lane
        inside = None if EVEN_N else column < columns
        values = tl.load(of_x + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        given = tl.load(of_d_out + column, mask=inside, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(weight + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
        normalized = (values - origin - shift) * scale
        result = scale * (given * w - mean - normalized * of_normalized)
        tl.store(to + column, result.to(d_x.dtype.element_ty), mask=inside)


def multi_pass(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, block_size: int, num_warps: int, per_sm: int
) -> Gradients:
    """Return the gradients for a matrix of at least one column. A program goes through a row three times, in
    steps of ``block_size`` columns; then ``per_sm`` programs on each multiprocessor sum up over the rows."""
    return launch_multi_pass(_NAME, _multi_pass, 2, (d_out, x, weight), block_size, num_warps, per_sm)
