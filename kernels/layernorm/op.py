"""Layer normalization as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like
from kernel_pipeline.ops.gradients import operator_of

from ..layernorm_backward.torch import gradients
from ..row_functions import rows_problem
from . import EPS

BACKWARD = "layernorm_backward"
"""The kernel of the gradients."""


def layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Layer normalization over x's last dimension, as ``torch.nn.functional.layer_norm``, in x's shape.

    x: any shape; weight and bias: (columns,). Providers take float32, bfloat16 and float16, one dtype for
    all three, and the default eps; torch computes everything else."""
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


def problem(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> object:
    """Return the problem of x's rows."""
    if eps != EPS:
        raise NotServedError(f"the kernel is compiled for eps {EPS}, not {eps}.")
    return rows_problem(x, weight, bias)


def backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients, by the kernel ``layernorm_backward`` where it was tuned."""
    operator = operator_of(BACKWARD, grad)
    if operator is None:
        return gradients(grad, x, weight, eps)
    made: tuple[torch.Tensor, ...] = operator(grad, x, weight, eps)
    return made


op = Op(
    definition=layernorm,
    problem=problem,
    inputs=lambda x, weight, bias, eps: (as_matrix(x), weight, bias),
    result=lambda made, x, weight, bias, eps: like(made, x),
    derivative=Derivative(("x", "weight", "eps"), backward, kernel=BACKWARD),
)
