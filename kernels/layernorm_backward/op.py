"""Layer normalization's backward pass as a function of tensors of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import NotServedError, Op, as_matrix, like

from ..layernorm import EPS
from ..row_functions import rows_problem, unlike
from .torch import gradients


def layernorm_backward(
    d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of x, weight and bias of ``layernorm(x, weight, bias, eps)``, given the gradient of its
    output.

    d_out: like x. Providers take the same tensors as providers of ``layernorm``; torch computes everything
    else. This function has no derivative of its own."""
    d_x, d_weight, d_bias = gradients(d_out, x, weight, eps)
    return d_x, d_weight, d_bias


def problem(d_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> object:
    """Return the problem of x's rows."""
    if eps != EPS:
        raise NotServedError(f"the kernel is compiled for eps {EPS}, not {eps}.")
    return rows_problem(x, weight)


op = Op(
    definition=layernorm_backward,
    refused=lambda d_out, x, weight, eps: unlike("d_out", d_out, "x", x),
    problem=problem,
    inputs=lambda d_out, x, weight, eps: (as_matrix(d_out), as_matrix(x), weight),
    result=lambda made, d_out, x, weight, eps: (like(made[0], x), *made[1:]),
)
