"""GELU as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, Op, as_matrix, like
from kernel_pipeline.ops.gradients import operator_of

from ..gelu_backward.torch import gelu_backward
from ..row_functions import elements_problem

BACKWARD = "gelu_backward"
"""The kernel of the gradient."""


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU of each element in its tanh form, as ``torch.nn.functional.gelu(x, approximate="tanh")``, of
    x's shape and dtype.

    Providers take float32, bfloat16 and float16; torch computes everything else."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def backward(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return the gradient, by the kernel ``gelu_backward`` where it was tuned."""
    operator = operator_of(BACKWARD, grad)
    return (gelu_backward(grad, x) if operator is None else operator(grad, x),)


op = Op(
    definition=gelu,
    problem=elements_problem,
    inputs=lambda x: (as_matrix(x),),
    result=like,
    derivative=Derivative(("x",), backward, kernel=BACKWARD),
)
