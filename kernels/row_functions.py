"""What ops over the rows and over the elements of a tensor share."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import NotServedError, problem_of

from . import elementwise, rows


def rows_problem(x: torch.Tensor, *parameters: torch.Tensor) -> rows.Matrix:
    """The rows of a tensor's last dimension, with weights and the like of a number for each column. Raises
    NotServedError for tensors that are no such problem."""
    columns = x.shape[-1] if x.dim() else 1
    for one in parameters:
        if one.shape != (columns,):
            raise NotServedError(f"a parameter has shape {tuple(one.shape)} for {columns} columns.")
    made: rows.Matrix = problem_of(
        rows.Matrix, x, *parameters, rows=x.numel() // max(columns, 1), columns=columns
    )
    return made


def elements_problem(x: torch.Tensor) -> elementwise.Matrix:
    """The elements of a tensor, in rows of its last dimension. Raises NotServedError for a tensor that is no
    such problem."""
    columns = x.shape[-1] if x.dim() else 1
    made: elementwise.Matrix = problem_of(
        elementwise.Matrix, x, rows=x.numel() // max(columns, 1), columns=columns
    )
    return made
