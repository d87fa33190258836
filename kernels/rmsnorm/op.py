"""RMS normalization as a function of a tensor of any shape."""

from __future__ import annotations

import torch

from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, like

from ..row_functions import rows_problem
from . import EPS


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
    """Return the gradients of x and of the weight.

    With ``r = 1 / sqrt(mean(x**2) + eps)``, ``n = x * r`` and ``g = grad * weight``, x's gradient is
    ``r * (g - n * mean(g * n))``, and the weight's is the sum of ``grad * n`` over the rows. A row has the
    weight's dimensions.

    torch differentiates its own function by the same formula, computed in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    wide_x, wide_grad = x.to(wide), grad.to(wide)
    of_row = tuple(range(-len(weight_shape), 0))
    factor = torch.rsqrt(wide_x.square().mean(of_row, keepdim=True) + eps)
    normalized = wide_x * factor
    of_weight = (wide_grad * normalized).sum_to_size(weight_shape)
    if weight is None:
        return None, of_weight
    scaled = wide_grad * weight.to(wide)
    of_x = factor * (scaled - normalized * (scaled * normalized).mean(of_row, keepdim=True))
    return of_x.to(x.dtype), of_weight.to(weight.dtype)


op = Op(
    definition=rmsnorm,
    problem=problem,
    inputs=lambda x, weight, eps: (as_matrix(x), weight),
    result=lambda made, x, weight, eps: like(made, x),
    derivative=Derivative(("x", "weight", "weight.shape", "eps"), backward, only_for={"weight": "x"}),
)
