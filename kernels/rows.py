"""What kernels over the rows of a matrix share: their problem, their parameters, and what fits. Without
torch.

A Triton program keeps a whole row in registers (register-resident), or takes it in steps of ``block_size``
columns, twice (two-pass). What the CUDA kernel can do with a row is in ``kernels/rows_plan.py``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernel_pipeline.contract import Gpu, one_of

if TYPE_CHECKING:
    import torch

MAX_RESIDENT_COLUMNS = 65536
"""Most columns of a register-resident row of a Triton program: 64 float32 registers a thread at 32 warps, the
most there are."""

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
    """How a program of one register-resident row is launched."""

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
    """Why rows of so many columns can't be register-resident in a Triton program, or None when they can."""
    if columns > MAX_RESIDENT_COLUMNS:
        return f"one block holds a row: {columns} columns > {MAX_RESIDENT_COLUMNS}"
    return None


def threads_too_full(elements: int, num_warps: int) -> str | None:
    """Why so many elements are not for so few warps of a Triton program, or None when they are."""
    of_thread = elements // (32 * num_warps)
    if of_thread > MAX_ELEMENTS:
        return f"too much for the registers: {of_thread} elements a thread > {MAX_ELEMENTS}"
    return None


def row_fits(problem: Any, parameters: Row | None, gpu: Gpu | None) -> str | None:
    """Why such a row can't be register-resident in a Triton program, or not with so few warps, or None."""
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
    """Why a Triton program of register-resident rows can't obey a block_size, or None when it can."""
    if problem.columns > parameters.block_size:
        return f"one block holds whole rows: {problem.columns} columns > block_size {parameters.block_size}"
    return row_too_wide(problem.columns) or step_fits(problem, parameters, gpu)


MAX_UNROLLED_COLUMNS = 32768
"""Columns up to which a two-pass Triton kernel is compiled for their number."""


def constexpr_columns(columns: int) -> int | None:
    """The number of columns as a constexpr of a two-pass Triton kernel, or None for a kernel that takes any.

    Loops over a constexpr number of columns are unrolled, with more loads in flight: on an H200 layernorm of
    16384 bfloat16 columns took 65.9 us instead of 74.7. Of 65536 columns nothing was gained.
    """
    return columns if columns <= MAX_UNROLLED_COLUMNS else None


MAX_FEW_ROWS = 64
"""Rows up to which a Triton kernel of register-resident rows is compiled for their number of columns."""


def constexpr_columns_of_few_rows(rows: int, columns: int) -> int | None:
    """The same for a Triton kernel of register-resident rows: few rows take as long as its instructions do,
    and with a constexpr number of columns there are fewer.

    On an H200 layernorm of 37 rows of 781 float32 columns took 1.95 us instead of 2.07; but rmsnorm of 4096
    rows 8.2 instead of 7.6.
    """
    return columns if rows <= MAX_FEW_ROWS else None


def vector_width(x: torch.Tensor, block_size: int) -> int:
    """Elements that a thread of a Triton program loads by one instruction: 16 bytes of them, but no more than
    ``block_size``, where Triton knows that all rows begin at multiples of 16 bytes, else one."""
    aligned = x.data_ptr() % 16 == 0 and x.stride(0) % 16 == 0
    return min(16 // x.element_size(), block_size) if aligned else 1
