"""The matrix product as a function of tensors."""

from __future__ import annotations

import functools

import torch

from kernel_pipeline import ops
from kernel_pipeline.ops.declaration import Derivative, NotServedError, Op, as_matrix, dtype_name, problem_of

from .problem import Problem, refused
from .torch import by_flag
from .torch import matmul as scaled


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    arithmetic: str = "ieee",
) -> torch.Tensor:
    """``a @ b``, as ``torch.matmul``.

    a: (..., m, k); b: (k, n). ``arithmetic="tf32"`` lets the tensor cores round float32 inputs to 11 bits,
    whatever torch's own flags say. Each float8_e4m3fn matrix needs a scale, a float32; the product is then
    bfloat16, and ``arithmetic="fast_accum"`` is allowed. Providers take float32, bfloat16, float16 and
    float8_e4m3fn; torch computes everything else, such as a batched b. Raises ValueError for an arithmetic
    that a's dtype does not have, and for one scale without the other."""
    if scale_a is None or scale_b is None:
        return by_flag(torch.matmul, a, b, arithmetic)
    made: torch.Tensor = scaled(as_matrix(a), b, scale_a, scale_b, arithmetic=arithmetic)
    return made.view(*a.shape[:-1], b.shape[1])


def refused_call(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    arithmetic: str,
) -> str | None:
    """Return the reason why the call is invalid, or None."""
    del b
    if (scale_a is None) != (scale_b is None):
        return f"scale_a and scale_b go together: scale_{'a' if scale_a is None else 'b'} is missing"
    return refused(dtype_name(a), arithmetic)


def problem(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    arithmetic: str,
) -> Problem:
    """Return the problem of multiplying all rows of a by b, with both layouts in memory."""
    if a.dim() < 2 or b.dim() != 2 or a.shape[-1] != b.shape[0]:
        raise NotServedError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit together.")
    rows, columns = matrices(a, b)
    made: Problem = problem_of(
        Problem,
        *(rows, columns),
        **{"m": rows.shape[0], "n": columns.shape[1], "k": columns.shape[0]},
        **{"arithmetic": arithmetic, "layout": lies(rows) + lies(columns)},
    )
    return made


def inputs(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    arithmetic: str,
) -> tuple[torch.Tensor, ...]:
    """Return the matrices, and the scales of float8."""
    del arithmetic
    return *matrices(a, b), *(scale for scale in (scale_a, scale_b) if scale is not None)


def matrices(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both matrices, each copied unless its rows or its columns are contiguous."""
    rows = as_matrix(a)
    return rows if 1 in rows.stride() else rows.contiguous(), b if 1 in b.stride() else b.contiguous()


def lies(x: torch.Tensor) -> str:
    """Return ``n`` for a row-major matrix and ``t`` for a column-major one."""
    return "n" if x.stride(1) == 1 else "t"


def backward(
    grad: torch.Tensor,
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    a_shape: torch.Size,
    b_shape: torch.Size,
    scale_a: torch.Tensor | None,
    arithmetic: str,
) -> tuple[torch.Tensor | None, ...]:
    """Return ``grad @ b.T`` and ``a.T @ grad``, each only where needed. If a or b has more dimensions, each
    product is summed over the broadcast dimensions. Raises NotImplementedError for scaled matrices."""
    if scale_a is not None:
        raise NotImplementedError(
            "matmul of scaled matrices has no derivative: call it under torch.no_grad()."
        )
    multiply = functools.partial(ops.function("matmul").operator, arithmetic=arithmetic)
    if len(b_shape) == 2 and len(a_shape) >= 2:
        of_a = None if b is None else multiply(grad, b.mT)
        return of_a, None if a is None else multiply(as_matrix(a).mT, as_matrix(grad))
    one_row, one_column = len(a_shape) == 1, len(b_shape) == 1
    grad = grad.unsqueeze(-1) if one_column else grad
    grad = grad.unsqueeze(-2) if one_row else grad
    of_a = of_b = None
    if b is not None:
        left = multiply(grad, (b[:, None] if one_column else b).mT)
        of_a = left.sum_to_size((1, *a_shape) if one_row else a_shape).view(a_shape)
    if a is not None:
        right = multiply((a[None] if one_row else a).mT, grad)
        of_b = right.sum_to_size((*b_shape, 1) if one_column else b_shape).view(b_shape)
    return of_a, of_b


op = Op(
    definition=matmul,
    problem=problem,
    refused=refused_call,
    inputs=inputs,
    result=lambda made, a, b, *others: made if a.dim() == 2 else made.view(*a.shape[:-1], b.shape[1]),
    derivative=Derivative(
        ("a", "b", "a.shape", "b.shape", "scale_a", "arithmetic"), backward, only_for={"a": "b", "b": "a"}
    ),
)
