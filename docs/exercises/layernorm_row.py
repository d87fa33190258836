"""Layer normalisation of a row with masked elements.

A program normalises a row: y = (x - mean) / sqrt(variance + 1e-5), with the variance over `columns` elements.
The block has COLUMNS elements, a power of two. Mean and variance are sums divided by `columns`, and elements
beyond the row's end must add nothing to either sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _normalise(out, x, columns, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0)
    # YOURS: compute `result`, the normalised row.
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / columns
    result = centred / tl.sqrt(variance + 1e-5)
    # END
    tl.store(out + row * columns + column, result, mask=inside)


def yours(x: torch.Tensor) -> torch.Tensor:
    """Launch a program a row."""
    out = torch.empty_like(x)
    _normalise[(x.shape[0],)](out, x, x.shape[1], COLUMNS=triton.next_power_of_2(x.shape[1]))
    return out


def expected(x: torch.Tensor) -> torch.Tensor:
    """The normalised rows in float64."""
    return torch.nn.functional.layer_norm(x.double(), x.shape[1:], eps=1e-5)


def cases():
    """A full block, a rest, and a mean far from zero: E[x^2] - mean^2 would lose its digits there."""
    yield (torch.randn(4, 128),)
    yield (torch.randn(4, 100) + 3,)
    yield (torch.randn(4, 100) * 0.1 + 300,)


TOLERANCE = 5e-3  # a mean of 300 in float32 leaves four digits of a deviation of 0.1

TOPIC, STEP = "Triton", 5

MISTAKE = """
mean = tl.sum(values, axis=0) / columns
centred = values - mean
variance = tl.sum(centred * centred, axis=0) / columns
result = centred / tl.sqrt(variance + 1e-5)
"""

HINTS = (
    "The elements beyond the end were loaded as 0. That is right for the sum. What are they after `- mean`?",
    "tl.where(condition, a, b) chooses element by element.",
    "centred = tl.where(inside, values - mean, 0.0); the variance is the sum of its squares / columns.",
)
