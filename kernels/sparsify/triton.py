"""Sparsify weights in Triton: one program for each tile, which it reads once.

The transpose is read in place by its strides, and Triton moves the tile's elements between threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..matmul_sparse.problem import TILE_K, TILE_N, up
from .checks import checked


@triton.jit  # type: ignore[untyped-decorator]
def _four(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    w: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Load a tile and return its first, second, third and fourth neighbours, in float32; zeros past the
    end."""
    inside = (row < rows) & (column < columns)
    x = tl.load(w + row * stride_row + column * stride_column, mask=inside, other=0.0).to(tl.float32)
    even, odd = tl.split(x.reshape(ROWS, COLUMNS // 4, 2, 2))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit  # type: ignore[untyped-decorator]
def _kept(
    first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return whether each has one of the two largest magnitudes: it beats at least two of the others."""
    a, b, c, d = tl.abs(first), tl.abs(second), tl.abs(third), tl.abs(fourth)
    # The first of equal values wins.
    ab, ac, ad = (a >= b).to(tl.int32), (a >= c).to(tl.int32), (a >= d).to(tl.int32)
    bc, bd, cd = (b >= c).to(tl.int32), (b >= d).to(tl.int32), (c >= d).to(tl.int32)
    return ab + ac + ad > 1, 1 - ab + bc + bd > 1, 2 - ac - bc + cd > 1, 3 - ad - bd - cd > 1


@triton.jit  # type: ignore[untyped-decorator]
def _prune(
    out: tl.tensor,
    w: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """A program writes a tile of w with zeros for the dropped weights."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    a, b, c, d = _four(w, row, column, rows, columns, columns, 1, ROWS, COLUMNS)
    of_a, of_b, of_c, of_d = _kept(a, b, c, d)
    even = tl.join(tl.where(of_a, a, 0.0), tl.where(of_c, c, 0.0))
    odd = tl.join(tl.where(of_b, b, 0.0), tl.where(of_d, d, 0.0))
    made = tl.join(even, odd).reshape(ROWS, COLUMNS).to(out.dtype.element_ty)
    tl.store(out + row * columns + column, made, mask=(row < rows) & (column < columns))


@triton.jit  # type: ignore[untyped-decorator]
def _compress(  # noqa: PLR0913, PLR0917  # Triton kernel arguments
    values: tl.tensor,
    metadata: tl.tensor,
    w: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    stride_row: tl.tensor,
    stride_column: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """A program writes a tile's values and words of metadata."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    a, b, c, d = _four(w, row, column, rows, columns, stride_row, stride_column, ROWS, COLUMNS)
    of_a, of_b, of_c, of_d = _kept(a, b, c, d)
    lower = tl.where(of_a, a, tl.where(of_b, b, c))
    upper = tl.where(of_d, d, tl.where(of_c, c, b))
    code = tl.where(of_a, 0, tl.where(of_b, 1, 2)) + 4 * tl.where(of_d, 3, tl.where(of_c, 2, 1))

    tiles = tl.cdiv(columns, 64)
    place = tl.program_id(1) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)[None, :]
    made = tl.join(lower, upper).reshape(ROWS, COLUMNS // 2).to(values.dtype.element_ty)
    tl.store(values + row * (tiles * 32) + place, made, mask=(row < rows) & (place < tiles * 32))

    # A word has 4 bits for each of four groups of a row; its upper half is for the row 8 below.
    four = tl.arange(0, COLUMNS // 4)[None, :]
    half = tl.arange(0, ROWS)[:, None] % 16 // 8
    shifted = code << 16 * half + 4 * (four % 4)
    words = tl.sum(shifted.reshape(ROWS // 16, 2, 8, COLUMNS // 16, 4), axis=4)
    words = tl.sum(words, axis=1)
    of_rows = tl.program_id(0) * (ROWS // 16) + tl.arange(0, ROWS // 16)[:, None, None]
    of_row = tl.arange(0, 8)[None, :, None]
    of_columns = tl.program_id(1) * (COLUMNS // 16) + tl.arange(0, COLUMNS // 16)[None, None, :]
    at = (of_rows.to(tl.int64) * tiles + of_columns // 4) * 32 + of_row * 4 + of_columns % 4
    tl.store(metadata + at, words, mask=(of_rows < tl.cdiv(rows, 16)) & (of_columns < tiles * 4))


def sparsify(
    w: torch.Tensor, step: str, block_rows: int, block_columns: int, num_warps: int
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return w pruned, or values and metadata of w or of its transpose. Raises ValueError unless the input is
    a matrix of a dtype that ``matmul_sparse`` multiplies."""
    w = checked(w)
    rows, columns = w.shape[::-1] if step == "transpose" else w.shape
    tiles = {"ROWS": block_rows, "COLUMNS": block_columns, "num_warps": num_warps}
    whole = up(rows, TILE_N), up(columns, TILE_K)
    grid = (triton.cdiv(whole[0], block_rows), triton.cdiv(whole[1], block_columns))
    if step == "prune":
        out = torch.empty_like(w)
        if out.numel() > 0:
            _prune[grid](out, w, rows, columns, **tiles)
        return out
    values = w.new_empty((rows, whole[1] // 2))
    metadata = w.new_empty((whole[0] // TILE_N, whole[1] // TILE_K, 32), dtype=torch.int32)
    if values.numel() > 0:
        strides = (1, w.shape[1]) if step == "transpose" else (w.shape[1], 1)
        _compress[grid](values, metadata, w, rows, columns, *strides, **tiles)
    return values, metadata
