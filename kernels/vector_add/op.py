"""The sum as a function of two tensors of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, problem_of

from . import Vectors


def vector_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two tensors, as ``x + y``.

    Providers take two tensors of one shape in float32, bfloat16 or float16; torch computes all other sums."""
    return x + y


def problem(x: torch.Tensor, y: torch.Tensor) -> Vectors:
    """Return the problem of two vectors with the elements of both tensors."""
    if x.shape != y.shape:
        raise NotServedError(f"one tensor has shape {tuple(x.shape)}, the other {tuple(y.shape)}.")
    made: Vectors = problem_of(Vectors, x, y, elements=x.numel())
    return made


def backward(
    grad: torch.Tensor,
    x_shape: torch.Size,
    y_shape: torch.Size,
    x_dtype: torch.dtype,
    y_dtype: torch.dtype,
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradient for each tensor: the output's gradient, summed where the tensor was broadcast."""
    return grad.sum_to_size(x_shape).to(x_dtype), grad.sum_to_size(y_shape).to(y_dtype)


op = Op(
    definition=vector_add,
    problem=problem,
    inputs=lambda x, y: (x, y) if x.dim() == 1 else (x.reshape(-1), y.reshape(-1)),
    result=lambda made, x, y: made if made.shape == x.shape else made.view(x.shape),
    derivative=Derivative(("x.shape", "y.shape", "x.dtype", "y.dtype"), backward),
)
