"""Bits inverted and counted by Triton, a program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def invert_row(x, counts, out, bits, columns, width: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    places = tl.arange(0, block)
    inside = places < columns
    values = tl.load(x + row * columns + places, inside, 0)
    tl.store(out + row * columns + places, ~values, inside)
    found = tl.zeros((block,), tl.int64)
    for place in range(width):
        found += ((values >> place) & 1).to(tl.int64)
    tl.store(counts + row * columns + places, found, inside)
    tl.store(bits + row, tl.sum(found, 0))


def inverted(x: torch.Tensor, counts: torch.Tensor, *, out: torch.Tensor, bits: torch.Tensor) -> None:
    rows, columns = x.shape
    block = triton.next_power_of_2(columns)
    invert_row[(rows,)](x, counts, out, bits, columns, 8 * x.itemsize, block)
