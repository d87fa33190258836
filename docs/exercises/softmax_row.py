"""Softmax of a row that fits in one program.

A program holds a row of `columns` numbers in a block of COLUMNS, a power of two. Elements beyond the row's
end are in the block, too, and must change neither the maximum nor the sum. Large numbers must not overflow:
exp(x - maximum) never does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(out, x, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    # YOURS: load the row into `values`, and compute its softmax into `result`.
    values = tl.load(x + row * columns + column, mask=inside, other=float("-inf"))
    numerator = tl.exp(values - tl.max(values, axis=0))
    result = numerator / tl.sum(numerator, axis=0)
    # END
    tl.store(out + row * columns + column, result, mask=inside)


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch a program a row."""
    out = torch.empty_like(x)
    _softmax[(x.shape[0],)](out, x, x.shape[1], COLUMNS=triton.next_power_of_2(x.shape[1]))
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The softmax of the rows in float64."""
    return torch.softmax(x.double(), dim=1)


def cases():
    """A full block, a block with a rest, and rows of large and of negative numbers."""
    yield (torch.randn(4, 128),)
    yield (torch.randn(4, 100),)
    yield (torch.randn(4, 100) * 100,)
    yield (torch.rand(4, 100) - 300,)


TOPIC, STEP = "Triton", 3

MISTAKE = """
values = tl.load(x + row * columns + column, mask=inside, other=0.0)
numerator = tl.exp(values - tl.max(values, axis=0))
result = numerator / tl.sum(numerator, axis=0)
"""

HINTS = (
    "softmax(x) = exp(x - max(x)) / sum(exp(x - max(x))). tl.max and tl.sum take axis=0.",
    "Elements beyond the end get a value of your choice by other=. What should exp make of it?",
    "exp(-inf) is 0, and -inf is never the maximum: other=float('-inf').",
)
