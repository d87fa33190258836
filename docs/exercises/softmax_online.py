"""Softmax of a row block by block: maximum and sum in one pass.

A row is too long for a program's registers, so it is read BLOCK columns at a time. The first pass sees each
piece once. At its end it has to know the row's maximum and the sum of exp(x - maximum). If a piece has a
larger maximum than all pieces before it, the sum so far was made with a maximum that was too small: correct
the sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(out, x, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    out += row * columns
    maximum = -3.0e38  # lower than every number here, and finite: -inf - -inf would be NaN
    total = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        values = tl.load(x + column, mask=column < columns, other=float("-inf"))
        # YOURS: bring `maximum` and `total` up to date with `values`.
        larger = tl.maximum(maximum, tl.max(values, axis=0))
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(values - larger), axis=0)
        maximum = larger
        # END
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        values = tl.load(x + column, mask=inside)
        tl.store(out + column, tl.exp(values - maximum) / total, mask=inside)


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch a program a row."""
    out = torch.empty_like(x)
    _softmax[(x.shape[0],)](out, x, x.shape[1], BLOCK=64)
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The softmax of the rows in float64."""
    return torch.softmax(x.double(), dim=1)


def cases():
    """One piece, several with a rest, and rows whose maximum comes first or last."""
    yield (torch.randn(2, 64),)
    yield (torch.randn(3, 200),)
    yield (torch.randn(2, 200).sort(dim=1).values * 10,)
    yield (torch.randn(2, 200).sort(dim=1, descending=True).values * 10,)


TOPIC, STEP = "Triton", 4

MISTAKE = """
maximum = tl.maximum(maximum, tl.max(values, axis=0))
total += tl.sum(tl.exp(values - maximum), axis=0)
"""

HINTS = (
    "The sum so far adds exp(x - maximum). You need the sum of exp(x - larger) over the same elements.",
    "exp(x - larger) = exp(x - maximum) * exp(maximum - larger), and the last factor is the same for all x.",
    "total = total * exp(maximum - larger) + the piece's own sum; `maximum` changes last.",
)
