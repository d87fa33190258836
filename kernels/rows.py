"""What kernels over the rows of a matrix share: their problem, their parameters, and what fits. Without
torch.

A Triton program holds a row whole in registers, or takes it in steps of ``block_size`` columns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.contract import Gpu, one_of

if TYPE_CHECKING:
    import torch

MAX_HELD_ROW = 65536
"""Most columns of a row that a Triton program holds: 64 float32 registers a thread at 32 warps, the most
there are."""

MAX_ELEMENTS = 64
"""Most elements of a step that a thread of a Triton program takes on, a quarter of the registers it can have:
with more, no launch was any provider's fastest on an H200, and Triton compiled for seconds or, in the widest
rows, tens of seconds."""

INTERPRETED_ROWS = 8
"""Rows that Triton's interpreter is given: programs that differ only in their row run the same code."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix whose rows are worked on one by one. 4096 rows fill every GPU several times over at a program
    a row."""

    rows: int = 4096
    columns: int
    dtype: str = one_of("float32", "bfloat16", "float16")

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return self.rows, self.columns

    @property
    def elements(self) -> int:
        """Of the matrix."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a program that holds one row is launched."""

    num_warps: int = one_of(1, 2, 4, 8, 16, 32, default=4, unit="w")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """How a program or block that takes ``block_size`` elements at a time is launched."""

    block_size: int = one_of(256, 512, 1024, 2048, 4096, 8192, 16384, 32768, default=1024, unit="")
    num_warps: int = one_of(1, 2, 4, 8, 16, 32, default=4, unit="w")


def few_rows(problem: Matrix) -> Matrix:
    """The problem for Triton's interpreter, which is slow."""
    return dataclasses.replace(problem, rows=min(problem.rows, INTERPRETED_ROWS))


def elements_a_thread(parameters: Any) -> float:
    """By which configurations take longer to compile than others."""
    block_size: int = getattr(parameters, "block_size", 1024)
    num_warps: int = parameters.num_warps
    return block_size / (32 * num_warps)


def row_too_wide(columns: int) -> str | None:
    """Why a Triton program can't hold rows of so many columns, or None when it can."""
    if columns > MAX_HELD_ROW:
        return f"one block holds a row: {columns} columns > {MAX_HELD_ROW}"
    return None


def threads_too_full(elements: int, num_warps: int) -> str | None:
    """Why so many elements are not for so few warps of a Triton program, or None when they are."""
    of_thread = elements // (32 * num_warps)
    if of_thread > MAX_ELEMENTS:
        return f"too much for the registers: {of_thread} elements a thread > {MAX_ELEMENTS}"
    return None


def row_fits(problem: Any, parameters: Row | None, gpu: Gpu | None) -> str | None:
    """Why a Triton program can't hold such a row, or not with so few warps, or None when it can."""
    del gpu
    reason = row_too_wide(problem.columns)
    if reason is None and parameters is not None:
        padded = 1 << (problem.columns - 1).bit_length()
        reason = threads_too_full(padded, parameters.num_warps)
    return reason


def step_fits(problem: Any, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Why a block_size is not for so few warps of a Triton program, or None when it is."""
    del problem, gpu
    return threads_too_full(parameters.block_size, parameters.num_warps)


def rows_fit_tile(problem: Any, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Why a Triton program that holds whole rows can't obey a block_size, or None when it can."""
    if problem.columns > parameters.block_size:
        return f"one block holds whole rows: {problem.columns} columns > block_size {parameters.block_size}"
    return row_too_wide(problem.columns) or step_fits(problem, parameters, gpu)


UNROLLED_COLUMNS = 32768
"""Columns up to which a Triton kernel that streams rows is compiled for their number."""


def known_columns(columns: int) -> int | None:
    """The number of columns to compile a Triton kernel for, or None for one that takes any.

    Loops over a known number of columns come out unrolled, with more loads under way: on an H200 layernorm of
    16384 bfloat16 columns took 65.9 us instead of 74.7. Of 65536 columns nothing was gained.
    """
    return columns if columns <= UNROLLED_COLUMNS else None


FEW_ROWS = 64
"""Rows up to which a Triton kernel that holds rows is compiled for their number of columns."""


def known_columns_of_few(rows: int, columns: int) -> int | None:
    """The same for a Triton kernel that holds rows: few rows take as long as its instructions do, and for a
    known number there are fewer.

    On an H200 layernorm of 37 rows of 781 float32 columns took 1.95 us instead of 2.07; but rmsnorm of 4096
    rows 8.2 instead of 7.6.
    """
    return columns if rows <= FEW_ROWS else None


def elements_together(x: torch.Tensor, block_size: int) -> int:
    """How many neighbouring elements of a matrix a thread of a Triton program that takes ``block_size`` in a
    step loads at once: 16 bytes of them where Triton knows that all rows begin at multiples of 16 bytes, else
    one."""
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0
    return min(16 // x.element_size(), block_size) if aligned else 1
