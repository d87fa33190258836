"""The square as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, Op, as_matrix, like

from ..row_functions import elements_problem


def square(x: torch.Tensor) -> torch.Tensor:
    """The square of each element, as ``torch.square(x)``, of x's shape and dtype.

    Providers take float32, bfloat16 and float16; torch computes everything else."""
    return torch.square(x)


def backward(grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Return ``2 * x * grad``."""
    return (2 * x * grad,)


op = Op(
    definition=square,
    problem=elements_problem,
    inputs=lambda x: (as_matrix(x),),
    result=like,
    derivative=Derivative(("x",), backward),
)
