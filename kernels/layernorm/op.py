"""Layer normalization as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like

from ..row_functions import rows_problem
from . import EPS


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
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients by torch's own backward operator, with each row's mean and deviation
    recomputed."""
    shape = list(weight.shape)
    _, mean, deviation = torch.native_layer_norm(x, shape, weight, bias, eps)
    made: tuple[torch.Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
        grad, x, shape, mean, deviation, weight, bias, [True, True, True]
    )
    return made


op = Op(
    definition=layernorm,
    problem=problem,
    inputs=lambda x, weight, bias, eps: (as_matrix(x), weight, bias),
    result=lambda made, x, weight, bias, eps: like(made, x),
    derivative=Derivative(("x", "weight", "bias", "eps"), backward),
)
