"""GELU as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, Op, as_matrix, like

from ..row_functions import elements_problem


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU of each element in its tanh form, as ``torch.nn.functional.gelu(x, approximate="tanh")``, of
    x's shape and dtype.

    Providers take float32, bfloat16 and float16; torch computes everything else."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def backward(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the derivative of the tanh form, by torch's operator."""
    return (torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),)


op = Op(
    definition=gelu,
    problem=elements_problem,
    inputs=lambda x: (as_matrix(x),),
    result=like,
    derivative=Derivative(("x",), backward),
)
