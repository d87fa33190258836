"""RMS normalization as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like
from kernel_pipeline.ops.gradients import operator_of

from ..rmsnorm_backward.torch import gradients
from ..row_functions import rows_problem
from . import EPS

BACKWARD = "rmsnorm_backward"
"""The kernel of the gradients."""


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """RMS normalization over x's last dimension, as ``torch.nn.functional.rms_norm``, in x's shape.

    x: any shape; weight: (columns,). Providers take float32, bfloat16 and float16, one dtype for both, and
    the default eps; torch computes everything else."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def problem(x: torch.Tensor, weight: torch.Tensor, eps: float) -> object:
    """Return the problem of x's rows."""
    if eps != EPS:
        raise NotServedError(f"the kernel is compiled for eps {EPS}, not {eps}.")
    return rows_problem(x, weight)


def backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, weight_shape: torch.Size, eps: float
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of x and of the weight, by the kernel ``rmsnorm_backward`` where it was tuned."""
    operator = None if weight is None else operator_of(BACKWARD, grad)
    if operator is None:
        return gradients(grad, x, weight, weight_shape, eps)
    made: tuple[torch.Tensor, ...] = operator(grad, x, weight, eps)
    return made


op = Op(
    definition=rmsnorm,
    problem=problem,
    inputs=lambda x, weight, eps: (as_matrix(x), weight),
    result=lambda made, x, weight, eps: like(made, x),
    derivative=Derivative(
        ("x", "weight", "weight.shape", "eps"), backward, only_for={"weight": "x"}, kernel=BACKWARD
    ),
)
