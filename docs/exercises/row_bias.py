"""Add a bias to every row of a matrix with a large row stride.

A program computes one row. The matrix is a slice of a wider matrix: its rows begin `row_stride`
elements apart, more than `columns`. The output has no gaps. COLUMNS is a power of two, and `columns`
may be smaller.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_bias(out, x, bias, row_stride, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    # YOURS: out[row, column] = x[row, column] + bias[column]
    total = tl.load(x + row * row_stride + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(out + row * columns + column, total, mask=inside)
    # END


def yours(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Launch a program a row."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), device=x.device)
    _add_bias[(rows,)](out, x, bias, x.stride(0), columns, COLUMNS=triton.next_power_of_2(columns))
    return out


def expected(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sum, broadcast over the rows."""
    return x.double() + bias.double()


def cases():
    """A whole matrix, and slices of wider ones."""
    for rows, columns, width in ((4, 64, 64), (5, 48, 64), (3, 100, 256)):
        yield torch.randn(rows, width)[:, :columns], torch.randn(columns)


TOPIC, STEP = "Triton", 2

MISTAKE = """
total = tl.load(x + row * columns + column, mask=inside) + tl.load(bias + column, mask=inside)
tl.store(out + row * columns + column, total, mask=inside)
"""

HINTS = (
    "An address is the tensor's address plus the number of elements before the wanted element.",
    "Row `row` of x begins at x + row * row_stride. Where does row `row` of out begin?",
    "The bias is the same for all rows: its address has no `row` in it.",
)
