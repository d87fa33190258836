"""The product with 2:4 sparse weights as a function of tensors."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, problem_of

from .problem import Problem
from .reference import dense


def matmul_sparse(x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` with 2:4 sparse weights, in x's dtype.

    x: (..., k); values: (n, k / 2), the kept weights; metadata: int32, the places of the kept weights, as
    ``kernels/matmul_sparse/reference.py`` packs them. Providers take bfloat16 and float16. Without a
    provider, torch makes the dense weights at every call."""
    return x @ weights(values, metadata, x.shape[-1]).t()


def weights(values: torch.Tensor, metadata: torch.Tensor, k: int) -> torch.Tensor:
    """Return the dense weights, n by k, with zeros for the dropped weights."""
    return dense(values.contiguous(), metadata.contiguous())[:, :k]


def problem(x: torch.Tensor, values: torch.Tensor, metadata: torch.Tensor) -> Problem:
    """Return the problem of multiplying all rows of x."""
    k = x.shape[-1]
    made: Problem = problem_of(
        Problem, x, values, **{"m": x.numel() // max(k, 1), "n": values.shape[0], "k": k}
    )
    if (tuple(values.shape), tuple(metadata.shape)) != (made.values_shape, made.metadata_shape):
        raise NotServedError(f"the weights have shape {tuple(values.shape)}, not {made.values_shape}.")
    return made


def backward(
    grad: torch.Tensor, x_shape: torch.Size, values: torch.Tensor, metadata: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """Return x's gradient, ``grad @ w``; the weights have none."""
    return grad @ weights(values, metadata, x_shape[-1]), None, None


op = Op(
    definition=matmul_sparse,
    problem=problem,
    inputs=lambda x, values, metadata: (as_matrix(x), values, metadata),
    result=lambda made, x, values, metadata: made.view(*x.shape[:-1], made.shape[1]),
    derivative=Derivative(("x.shape", "values", "metadata"), backward),
)
