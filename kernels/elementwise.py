"""Declare the problem of elementwise kernels over a matrix, and its small form. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernel_pipeline.contract import one_of

from .rows import INTERPRETED_ROWS


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix for operations on single elements."""

    rows: int
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


def few_rows(problem: Matrix) -> Matrix:
    """Return a small problem for Triton's slow interpreter."""
    return dataclasses.replace(problem, rows=min(problem.rows, INTERPRETED_ROWS))
