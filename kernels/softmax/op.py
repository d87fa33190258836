"""Softmax as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like

from ..row_functions import rows_problem


def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Softmax of x along a dimension, as ``torch.softmax(x, dim)``, of x's shape and dtype.

    Providers take float32, bfloat16 and float16 along the last dimension; torch computes everything else."""
    return torch.softmax(x, dim)


def problem(x: torch.Tensor, dim: int) -> object:
    """Return the problem of x's rows."""
    if dim not in (-1, x.dim() - 1):
        raise NotServedError(f"dimension {dim} is not the last.")
    return rows_problem(x)


def backward(grad: torch.Tensor, out: torch.Tensor, dim: int) -> tuple[torch.Tensor | None, ...]:
    """Return ``(grad - sum(grad * out)) * out``, by the backward operator of torch's softmax."""
    return (torch.ops.aten._softmax_backward_data(grad, out, dim, out.dtype),)


op = Op(
    definition=softmax,
    problem=problem,
    inputs=lambda x, dim: (as_matrix(x),),
    result=lambda made, x, dim: like(made, x),
    derivative=Derivative(("out", "dim"), backward),
)
