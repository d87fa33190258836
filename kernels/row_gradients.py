"""Declare the parameters, the limits and the tolerances of the backward passes of norms. Imports no torch.

A norm's backward pass gives the gradient of each row, and the gradients of weight and bias, which are sums
over all rows. A persistent Triton program sums up its rows; ``triton_multi_pass`` sums up in a second kernel,
which reads the matrices again. Softmax's backward pass, which has no such sums, shares a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernel_pipeline.contract import EPSILON, ITEM_BYTES, Gpu, Tolerance, one_of

from .rows import Matrix, Tile

MAX_WIDTH = 16384
"""The most columns of a row in registers: each of 512 threads with 128 registers has 32 of them."""

NARROW = 8192
"""The columns up to which a thread keeps the row of x and of d_out, the weight and the sums. In wider rows it
keeps the sums and two of the rows, as they were loaded, and reads the rest again, which L1 still holds."""

REGISTERS = 65536
"""The registers of a multiprocessor."""

MAX_REGISTERS = 255
"""The most registers of a thread."""

RESERVED = 32
"""Registers of a thread for addresses and partial results."""

RESERVED_SHARED = 1024
"""Bytes of shared memory of a program for reductions, and for the system."""

FEW_COLUMNS = 16
"""Columns from which on no row of normal numbers is close to zero."""


@dataclass(frozen=True, kw_only=True)
class Persistent:
    """The launch of persistent programs that take ``block_size`` elements at a time, whole rows in registers:
    ``num_stages - 1`` further steps are loaded ahead, and a multiprocessor has ``per_sm`` programs."""

    block_size: int = one_of(256, 512, 1024, 2048, 4096, 8192, 16384, default=4096, unit="")
    num_warps: int = one_of(1, 2, 4, 8, 16, default=8, unit="w")
    num_stages: int = one_of(1, 2, 3, default=1, unit="s")
    per_sm: int = one_of(1, 2, 4, 8, default=2, unit="p")


@dataclass(frozen=True, kw_only=True)
class MultiPass:
    """The launch of a program for each row, which goes through it several times in steps of ``block_size``
    columns, and of ``per_sm`` programs on each multiprocessor that sum up over the rows."""

    block_size: int = one_of(256, 512, 1024, 2048, 4096, 8192, default=2048, unit="")
    num_warps: int = one_of(1, 2, 4, 8, 16, 32, default=8, unit="w")
    per_sm: int = one_of(2, 4, 8, 16, default=8, unit="p")


def row_too_wide(columns: int) -> str | None:
    """Return the reason why a row of this many columns can't be kept in registers with its sums, or None."""
    if columns > MAX_WIDTH:
        return f"one program holds a row and its sums: {columns} columns > {MAX_WIDTH}"
    return None


def persistent_fits(problem: Matrix, parameters: Persistent, gpu: Gpu | None, sums: int) -> str | None:
    """Return the reason why a persistent program can't have this launch, or None. ``sums`` is the number of
    sums over the rows that it keeps for each column."""
    size, threads = parameters.block_size, 32 * parameters.num_warps
    if problem.columns > size:
        return f"one program holds whole rows: {problem.columns} columns > block_size {size}"
    if reason := row_too_wide(problem.columns):
        return reason
    if problem.columns > NARROW and parameters.num_stages > 1:
        return f"rows of more than {NARROW} columns are read twice, and num_stages > 1 copies both ahead"
    # x, d_out and the weight; where rows are not aligned, addresses too.
    rows = 3 if problem.columns <= NARROW else 2 * ITEM_BYTES[problem.dtype] / 4
    kept = math.ceil((rows + sums) * size / threads * (1 if is_aligned(problem) else 1.5))
    registers = max(0, min(MAX_REGISTERS, REGISTERS // (threads * parameters.per_sm)) - RESERVED)
    if kept > registers:
        return f"too much for the registers: {kept} numbers per thread > {registers}"
    needed = 2 * (parameters.num_stages - 1) * size * ITEM_BYTES[problem.dtype] + RESERVED_SHARED
    if gpu is not None and needed * parameters.per_sm > gpu.shared_memory:
        return (
            f"too much for the shared memory: {parameters.per_sm} x {needed} bytes in "
            f"{parameters.num_stages} stages > {gpu.shared_memory}"
        )
    return None


def multi_pass_fits(problem: Matrix, parameters: MultiPass | Tile, registers: int) -> str | None:
    """Return the reason why a program that goes through its row in steps needs more warps for its
    block_size, or None. ``registers`` is the number of registers per element of an aligned row."""
    threads = 32 * parameters.num_warps
    elements = parameters.block_size // threads
    # Found by compiling for sm_90: with more elements the kernels spill.
    registers_each = registers * (1 if is_aligned(problem) else 2)
    most = min(MAX_REGISTERS + 1, REGISTERS // threads) // registers_each
    if elements > most:
        return f"too much for the registers: {elements} elements per thread > {most}"
    return None


def is_aligned(problem: Matrix) -> bool:
    """Whether Triton knows that all rows begin at multiples of 16 bytes."""
    return problem.columns % 16 == 0


def tolerances(problem: Matrix, sums: int, largest: float) -> tuple[Tolerance, ...]:
    """Return how far d_x and the sums over the rows may be from the reference. ``largest`` is the largest
    factor of a row, ``1 / sqrt(eps)``.

    An output is rounded once. The absolute part is float32's: d_x is a difference of numbers of some units,
    times the row's factor, which is about 1 but up to ``largest`` for rows of few columns that are all close
    to zero. A sum of products of some units has a size of sqrt(rows), and as many roundings in a row give up
    to 1e-5 of that.
    """
    rtol = max(1e-5, 1.02 * EPSILON[problem.dtype])
    of_x = 2e-5 if problem.columns >= FEW_COLUMNS else 4e-6 * largest
    of_sums = Tolerance(rtol=rtol, atol=1e-5 * math.sqrt(problem.rows))
    return (Tolerance(rtol=rtol, atol=of_x), *(of_sums,) * sums)
