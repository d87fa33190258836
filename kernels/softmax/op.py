"""Softmax as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like
from kernel_pipeline.ops.gradients import operator_of

from ..row_functions import rows_problem
from ..softmax_backward.torch import gradient

BACKWARD = "softmax_backward"
"""The kernel of the gradient."""


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
    """Return the gradient, by the kernel ``softmax_backward`` where it was tuned."""
    operator = operator_of(BACKWARD, grad)
    return (gradient(grad, out, dim) if operator is None else operator(grad, out, dim),)


op = Op(
    definition=softmax,
    problem=problem,
    inputs=lambda x, dim: (as_matrix(x),),
    result=lambda made, x, dim: like(made, x),
    derivative=Derivative(("out", "dim"), backward, kernel=BACKWARD),
)
