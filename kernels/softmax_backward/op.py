"""Softmax's backward pass as a function of tensors of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import NotServedError, Op, as_matrix, like

from ..row_functions import rows_problem, unlike
from .torch import gradient


def softmax_backward(d_out: torch.Tensor, out: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The gradient of x of ``out = softmax(x, dim)``, given the gradient of out.

    d_out: like out. Providers take float32, bfloat16 and float16 along the last dimension; torch computes
    everything else. This function has no derivative of its own."""
    return gradient(d_out, out, dim)


def problem(d_out: torch.Tensor, out: torch.Tensor, dim: int) -> object:
    """Return the problem of out's rows."""
    if dim not in (-1, out.dim() - 1):
        raise NotServedError(f"dimension {dim} is not the last.")
    return rows_problem(out)


op = Op(
    definition=softmax_backward,
    refused=lambda d_out, out, dim: unlike("d_out", d_out, "out", out),
    problem=problem,
    inputs=lambda d_out, out, dim: (as_matrix(d_out), as_matrix(out)),
    result=lambda made, d_out, out, dim: like(made, out),
)
