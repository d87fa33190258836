"""Add the sums that Triton programs made of their rows, in the same order at every call."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

STEP = 32
"""Programs whose sums are added at a time."""

COLUMNS = 32
"""Columns of a program: 128 bytes of each sum."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_sums(
    out: tl.tensor,
    other: tl.tensor,
    sums: tl.tensor,
    programs: tl.int64,
    columns: tl.int64,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """A program adds a block of columns over all programs that made sums: those of the first output, or of
    the second, whose sums follow."""
    second = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums += second.to(tl.int64) * programs * columns
    total = tl.zeros([STEP, BLOCK], tl.float32)
    for start in range(0, programs, STEP):
        program = start + tl.arange(0, STEP)[:, None]
        inside = (program < programs) & (column < columns)[None, :]
        total += tl.load(sums + program.to(tl.int64) * columns + column[None, :], mask=inside, other=0.0)
    result = tl.sum(total, axis=0).to(out.dtype.element_ty)
    if second == 0:
        tl.store(out + column, result, mask=column < columns)
    else:
        tl.store(other + column, result, mask=column < columns)


def added(sums: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return one or two sums over all programs, in one launch, each rounded once. ``sums`` has shape (1 or 2,
    programs, columns) and is float32."""
    count, programs, columns = sums.shape
    made = tuple(torch.empty(columns, dtype=dtype, device=sums.device) for _ in range(count))
    grid = (triton.cdiv(columns, COLUMNS), count)
    _add_sums[grid](made[0], made[-1], sums, programs, columns, STEP=STEP, BLOCK=COLUMNS, num_warps=4)
    return made
