"""Sum up over the rows of a matrix in Triton, in the same order at every call: programs sum up parts of the
rows, and a second kernel adds their sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

STEP = 32
"""Programs whose sums are added at a time."""

COLUMNS = 32
"""Columns of a program: 128 bytes of each sum."""

TILE = (8, 128)
"""Rows and columns that a program sums up at a time."""


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


@triton.jit  # type: ignore[untyped-decorator]
def _sum_rows(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    sums: tl.tensor,
    d_out: tl.tensor,
    x: tl.tensor,
    statistics: tl.tensor,
    d_out_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int64,
    columns: tl.int64,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CENTRED: tl.constexpr,
) -> None:
    """A program sums up d_out times the normalized x, and if CENTRED d_out, over every n-th ROWS rows of
    COLUMNS columns. ``statistics`` has a factor for each row, and if CENTRED how far the row's mean is from
    its first element."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    in_row = column < columns
    of_weight = tl.zeros([ROWS, COLUMNS], tl.float32)
    of_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row = tl.cast(start, tl.int64) + tl.arange(0, ROWS)[:, None]
        exists = row < rows
        inside = exists & in_row
        values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(d_out + row * d_out_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(statistics + row, mask=exists, other=0.0)
        if CENTRED:
            values -= tl.load(x + row * x_stride, mask=exists, other=0.0).to(tl.float32)
            values -= tl.load(statistics + rows + row, mask=exists, other=0.0)
            of_bias += given
        of_weight += given * (values * scale)
    sums += tl.program_id(1).to(tl.int64) * columns
    tl.store(sums + column, tl.sum(of_weight, axis=0)[None, :], mask=in_row)
    if CENTRED:
        sums += tl.num_programs(1).to(tl.int64) * columns
        tl.store(sums + column, tl.sum(of_bias, axis=0)[None, :], mask=in_row)


def summed(
    d_out: torch.Tensor, x: torch.Tensor, statistics: torch.Tensor, programs: int
) -> tuple[torch.Tensor, ...]:
    """Return the sum over the rows of d_out times the normalized x, and if ``statistics`` has two rows that
    of d_out, in x's dtype. About ``programs`` programs share the rows and columns of both matrices."""
    rows, columns = x.shape
    blocks = triton.cdiv(columns, TILE[1])
    parts = max(1, min(triton.cdiv(rows, TILE[0]), programs // blocks))
    count = statistics.shape[0]
    sums = torch.empty((count, parts, columns), dtype=torch.float32, device=x.device)
    _sum_rows[(blocks, parts)](
        *(sums, d_out, x, statistics, d_out.stride(0), x.stride(0), rows, columns),
        ROWS=TILE[0],
        COLUMNS=TILE[1],
        CENTRED=count == 2,
        num_warps=4,
    )
    return added(sums, x.dtype)
