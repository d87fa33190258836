"""What kernels over the elements of a matrix share: their problem, and how much of it is interpreted.
Without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kernel_pipeline.contract import one_of

from .rows import INTERPRETED_ROWS


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix whose elements are worked on one by one, whatever row they are in."""

    rows: int
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


def few_rows(problem: Matrix) -> Matrix:
    """The problem for Triton's interpreter, which is slow."""
    return dataclasses.replace(problem, rows=min(problem.rows, INTERPRETED_ROWS))
