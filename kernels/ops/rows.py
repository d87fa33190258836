"""What ops over the rows and over the elements of a tensor share."""

from __future__ import annotations

import torch

from kernels import elementwise, rows
from kernels.contract import variables
from kernels.ops.declaration import served

DTYPES = variables(rows.Matrix)["dtype"].values
"""Those that the kernels over rows and over elements have."""


def rows_problem(x: torch.Tensor) -> rows.Matrix:
    """The rows of a tensor's last dimension. Raises NotServedError for a tensor that is no such problem."""
    dtype = served(x, DTYPES)
    columns = x.shape[-1] if x.dim() else 1
    return rows.Matrix(rows=x.numel() // columns, columns=columns, dtype=dtype)


def elements_problem(x: torch.Tensor) -> elementwise.Matrix:
    """The elements of a tensor, in rows of its last dimension. Raises NotServedError for a tensor that is no
    such problem."""
    of_rows = rows_problem(x)
    return elementwise.Matrix(rows=of_rows.rows, columns=of_rows.columns, dtype=of_rows.dtype)
