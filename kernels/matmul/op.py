"""The matrix product as a function of tensors."""

from __future__ import annotations

import torch

from kernels import ops
from kernels.matmul.problem import FLOAT8, Problem, refused
from kernels.matmul.torch import by_flag
from kernels.ops.declaration import Derivative, NotServedError, Op, as_matrix, dtype_name, problem_of


def matmul(a: torch.Tensor, b: torch.Tensor, arithmetic: str = "ieee") -> torch.Tensor:
    """``a @ b``, as ``torch.matmul``; contiguous.

    a: (..., m, k); b: (k, n). ``arithmetic="tf32"`` lets the tensor cores round float32 inputs to 11 bits,
    whatever torch's own flags say. Providers take float32, bfloat16 and float16; the rest, a b of several
    matrices too, is torch's."""
    return by_flag(torch.matmul, a, b, arithmetic)


def problem(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> Problem:
    """The product of a matrix of all of a's rows, and b, as they lie in memory."""
    if a.dim() < 2 or b.dim() != 2 or a.shape[-1] != b.shape[0]:
        raise NotServedError(f"shapes {tuple(a.shape)} and {tuple(b.shape)} are not those of one product.")
    if dtype_name(a) == FLOAT8:
        raise NotServedError(f"{FLOAT8} has scales.")
    if reason := refused(dtype_name(a), arithmetic):
        raise NotServedError(f"{reason}.")
    rows, columns = inputs(a, b, arithmetic)
    made: Problem = problem_of(
        Problem,
        *(rows, columns),
        **{"m": rows.shape[0], "n": columns.shape[1], "k": columns.shape[0]},
        **{"arithmetic": arithmetic, "layout": lies(rows) + lies(columns)},
    )
    return made


def inputs(a: torch.Tensor, b: torch.Tensor, arithmetic: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices, copied where their elements lie side by side neither in rows nor in columns."""
    del arithmetic
    rows = as_matrix(a)
    return tuple(x if 1 in x.stride() else x.contiguous() for x in (rows, b))  # type: ignore[return-value]


def lies(x: torch.Tensor) -> str:
    """``n`` for a matrix that is row-major, ``t`` for one that is column-major."""
    return "n" if x.stride(1) == 1 else "t"


def backward(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, arithmetic: str
) -> tuple[torch.Tensor | None, ...]:
    """``grad @ b.T`` and ``a.T @ grad``, products like the first. Where a or b is more than a matrix each
    product is summed over what was broadcast."""
    multiply = ops.function("matmul").operator
    if b.dim() == 2 and a.dim() >= 2:
        rows, of_rows = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return multiply(grad, b.mT, arithmetic), multiply(rows.mT, of_rows, arithmetic)
    one_row, one_column = a.dim() == 1, b.dim() == 1
    left, right = a[None] if one_row else a, b[:, None] if one_column else b
    grad = grad.unsqueeze(-2) if one_row else grad
    grad = grad.unsqueeze(-1) if one_column else grad
    of_left, of_right = multiply(grad, right.mT, arithmetic), multiply(left.mT, grad, arithmetic)
    return of_left.sum_to_size(left.shape).view(a.shape), of_right.sum_to_size(right.shape).view(b.shape)


op = Op(
    definition=matmul,
    problem=problem,
    inputs=inputs,
    result=lambda made, a, b, arithmetic: made if a.dim() == 2 else made.view(*a.shape[:-1], b.shape[1]),
    derivative=Derivative(("a", "b", "arithmetic"), backward),
)
