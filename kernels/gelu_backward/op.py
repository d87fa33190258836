"""GELU's backward pass as a function of tensors of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Op, as_matrix, like

from ..row_functions import elements_problem, unlike
from .torch import gelu_backward as by_torch


def gelu_backward(d_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of x of ``gelu(x)``, given the gradient of its output, of x's shape and dtype.

    d_out: like x. Providers take float32, bfloat16 and float16; torch computes everything else. This function
    has no derivative of its own."""
    return by_torch(d_out, x)


op = Op(
    definition=gelu_backward,
    refused=lambda d_out, x: unlike("d_out", d_out, "x", x),
    problem=lambda d_out, x: elements_problem(x),
    inputs=lambda d_out, x: (as_matrix(d_out), as_matrix(x)),
    result=lambda made, d_out, x: like(made, x),
)
