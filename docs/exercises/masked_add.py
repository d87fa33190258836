"""Add two vectors whose last block is not full.

A program adds BLOCK elements. The vector's length is no multiple of BLOCK, so the last program has elements
beyond the end: it must neither read nor write them. `out` is longer than the vectors and holds NaN, and
stays NaN beyond their end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add(out, x, y, elements, BLOCK: tl.constexpr):
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # YOURS: load both blocks, add them, store the sum.
    inside = offset < elements
    total = tl.load(x + offset, mask=inside) + tl.load(y + offset, mask=inside)
    tl.store(out + offset, total, mask=inside)
    # END


def yours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Launch a program for every 128 elements."""
    programs = triton.cdiv(x.numel(), 128)
    out = torch.full((programs * 128,), torch.nan, device=x.device)
    _add[(programs,)](out, x, y, x.numel(), BLOCK=128)
    return out


def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum, and NaN up to a multiple of 128."""
    return torch.nn.functional.pad(x.double() + y.double(), (0, -x.numel() % 128), value=torch.nan)


def cases():
    """Lengths around a multiple of the block."""
    for elements in (128, 200, 600):
        # Slices of a longer vector: beyond their end there are numbers, not the end of memory.
        yield torch.randn(2 * elements)[:elements], torch.randn(2 * elements)[:elements]


TOPIC, STEP = "Triton", 1

MISTAKE = "tl.store(out + offset, tl.load(x + offset) + tl.load(y + offset))"

HINTS = (
    "`offset` holds the numbers of all 128 elements of the block. Compare it with `elements`.",
    "tl.load and tl.store take mask=: a block of booleans, true for the elements that exist.",
    "inside = offset < elements; then three accesses with mask=inside.",
)
