"""Make the problems of ops over the rows and over the elements of a tensor."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import NotServedError, problem_of

from . import elementwise, rows


def rows_problem(x: torch.Tensor, *parameters: torch.Tensor) -> rows.Matrix:
    """Return the problem of a tensor's rows along its last dimension, where each parameter has one number per
    column. Raises NotServedError for other tensors."""
    columns = x.shape[-1] if x.dim() else 1
    for one in parameters:
        if one.shape != (columns,):
            raise NotServedError(f"a parameter has shape {tuple(one.shape)} for {columns} columns.")
    made: rows.Matrix = problem_of(
        rows.Matrix, x, *parameters, rows=x.numel() // max(columns, 1), columns=columns
    )
    return made


def elements_problem(x: torch.Tensor) -> elementwise.Matrix:
    """Return the problem of an elementwise operation on a tensor, whose rows lie along its last dimension.

    Raises NotServedError for a tensor that the kernels do not support.
    """
    columns = x.shape[-1] if x.dim() else 1
    made: elementwise.Matrix = problem_of(
        elementwise.Matrix, x, rows=x.numel() // max(columns, 1), columns=columns
    )
    return made


def unlike(name: str, one: torch.Tensor, of: str, x: torch.Tensor) -> str | None:
    """Return the reason why a tensor is not like another one, or None."""
    if (one.shape, one.dtype) != (x.shape, x.dtype):
        return (
            f"{name} must be like {of}, {tuple(x.shape)} of {x.dtype}, not {tuple(one.shape)} of {one.dtype}"
        )
    return None
