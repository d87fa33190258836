"""Declare the problem, the parameters and the limits of kernels over the rows of a matrix. Imports no torch.

A Triton program keeps a whole row in registers (register-resident), or reads it twice in steps of
``block_size`` columns (two-pass). ``kernels/rows_plan.py`` has the strategies of the CUDA kernel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_pipeline.contract import Gpu, one_of

if TYPE_CHECKING:
    import torch

MAX_RESIDENT_COLUMNS = 65536
"""The maximum number of columns of a register-resident row of a Triton program: 64 float32 registers per
thread with 32 warps, the maximum."""

MAX_ELEMENTS = 64
"""The maximum number of elements of a step per thread of a Triton program, a quarter of its registers. With
more elements no launch was any provider's fastest on an H200, and Triton compiled for seconds or, for the
widest rows, tens of seconds."""

INTERPRETED_ROWS = 8
"""Rows for Triton's interpreter: programs that differ only in their row run the same code."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix for operations on rows. With one program per row, 4096 rows fill every GPU several times."""

    rows: int = 4096
    columns: int
    dtype: str = one_of("float32", "bfloat16", "float16")

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.rows, self.columns

    @property
    def elements(self) -> int:
        """The number of elements of the matrix."""
        return self.rows * self.columns


@dataclass(frozen=True, kw_only=True)
class Row:
    """The launch of a program that keeps one row in registers."""

    num_warps: int = one_of(1, 2, 4, 8, 16, 32, default=4, unit="w")


@dataclass(frozen=True, kw_only=True)
class Tile:
    """The launch of a program or block that takes ``block_size`` elements at a time."""

    block_size: int = one_of(256, 512, 1024, 2048, 4096, 8192, 16384, 32768, default=1024, unit="")
    num_warps: int = one_of(1, 2, 4, 8, 16, 32, default=4, unit="w")


def few_rows(problem: Matrix) -> Matrix:
    """Return a small problem for Triton's slow interpreter."""
    return dataclasses.replace(problem, rows=min(problem.rows, INTERPRETED_ROWS))


def elements_a_thread(parameters: Any) -> float:
    """Return a weight of the compile time: elements per thread."""
    block_size: int = getattr(parameters, "block_size", 1024)
    num_warps: int = parameters.num_warps
    return block_size / (32 * num_warps)


def row_too_wide(columns: int) -> str | None:
    """Return the reason why rows of this many columns can't be register-resident in a Triton program, or
    None."""
    if columns > MAX_RESIDENT_COLUMNS:
        return f"one block holds a row: {columns} columns > {MAX_RESIDENT_COLUMNS}"
    return None


def threads_too_full(elements: int, num_warps: int) -> str | None:
    """Return the reason why a Triton program needs more warps for this many elements, or None."""
    of_thread = elements // (32 * num_warps)
    if of_thread > MAX_ELEMENTS:
        return f"too much for the registers: {of_thread} elements per thread > {MAX_ELEMENTS}"
    return None


def row_fits(problem: Any, parameters: Row | None, gpu: Gpu | None) -> str | None:
    """Return the reason why a row can't be register-resident in a Triton program with these warps, or
    None."""
    del gpu
    reason = row_too_wide(problem.columns)
    if reason is None and parameters is not None:
        padded = 1 << (problem.columns - 1).bit_length()
        reason = threads_too_full(padded, parameters.num_warps)
    return reason


def step_fits(problem: Any, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Return the reason why a Triton program needs more warps for its block_size, or None."""
    del problem, gpu
    return threads_too_full(parameters.block_size, parameters.num_warps)


def rows_fit_tile(problem: Any, parameters: Tile, gpu: Gpu | None) -> str | None:
    """Return the reason why a program of register-resident rows can't have this block_size, or None."""
    if problem.columns > parameters.block_size:
        return f"one block holds whole rows: {problem.columns} columns > block_size {parameters.block_size}"
    return row_too_wide(problem.columns) or step_fits(problem, parameters, gpu)


MAX_UNROLLED_COLUMNS = 32768
"""Columns up to which a two-pass Triton kernel is compiled for a constant number of columns."""


def constexpr_columns(columns: int) -> int | None:
    """Return the number of columns as a constexpr of a two-pass Triton kernel, or None for a kernel that
    takes any number.

    Loops over a constexpr number of columns are unrolled, with more loads in flight: on an H200 layernorm of
    16384 bfloat16 columns took 65.9 us instead of 74.7. 65536 columns gained nothing.
    """
    return columns if columns <= MAX_UNROLLED_COLUMNS else None


MAX_FEW_ROWS = 64
"""Rows up to which a register-resident Triton kernel is compiled for a constant number of columns."""


def constexpr_columns_of_few_rows(rows: int, columns: int) -> int | None:
    """Return the number of columns as a constexpr of a register-resident Triton kernel, or None. Instructions
    limit a matrix of few rows, and a constexpr number of columns saves some.

    On an H200 it shortened layernorm of 37 rows of 781 float32 columns from 2.07 to 1.95 us, but lengthened
    rmsnorm of 4096 rows from 7.6 to 8.2 us.
    """
    return columns if rows <= MAX_FEW_ROWS else None


def vector_width(x: torch.Tensor, block_size: int) -> int:
    """Return the elements of one load of a thread: 16 bytes, but at most ``block_size``, if Triton knows that
    all rows begin at multiples of 16 bytes; else one."""
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0
    return min(16 // x.element_size(), block_size) if aligned else 1
