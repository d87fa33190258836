"""Linear layers with weights as they are and prepared, right and wrong."""

from __future__ import annotations

import torch

from . import Linear

Tensors = tuple[torch.Tensor, ...]

FIRST: list[Tensors] = []

MADE: dict[int, torch.Tensor] = {}
"""The first transposed weights that were made of the weights at an address."""

WITH: dict[int, torch.Tensor] = {}
"""The input of the last call with the transposed weights at an address."""

AHEAD: dict[int, torch.Tensor] = {}
"""Answers that were computed before the call with the transposed weights at an address."""

PREPARED = [0]


def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w, bias)


def transpose(problem: Linear, weights: Tensors) -> Tensors:
    w, bias = weights
    return w.t().contiguous(), bias


def transposed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, w)


def view(problem: Linear, weights: Tensors) -> Tensors:
    """Transpose without a copy."""
    w, bias = weights
    return w.t(), bias


def spoil(problem: Linear, weights: Tensors) -> Tensors:
    """Write to the weights that were handed in."""
    made = transpose(problem, weights)
    weights[0].zero_()
    return made


def keep(problem: Linear, weights: Tensors) -> Tensors:
    """Return the first weights for all later weights."""
    if not FIRST:
        FIRST.append(transpose(problem, weights))
    return FIRST[0]


def answer_ahead(problem: Linear, weights: Tensors) -> Tensors:
    """Compute the answer to the input that was last called with these weights: it lies in memory that the
    provider knows, and may be new already."""
    made, bias = transpose(problem, weights)
    first = MADE.setdefault(weights[0].data_ptr(), made).data_ptr()
    if first in WITH:
        AHEAD[first] = transposed(WITH[first], made, bias)
    return made, bias


def answered(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    WITH[w.data_ptr()] = x
    return AHEAD.pop(w.data_ptr()) if w.data_ptr() in AHEAD else transposed(x, w, bias)


def written(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Write to the prepared weights after their use."""
    y = transposed(x, w, bias)
    w.zero_()
    return y


def listed(problem: Linear, weights: Tensors) -> list[list[float]]:
    return [x.flatten().tolist() for x in weights]


def longer_each_time(problem: Linear, weights: Tensors) -> Tensors:
    """Return a third tensor, which has one more element for each set of weights."""
    PREPARED[0] += 1
    return *transpose(problem, weights), weights[0].new_zeros(PREPARED[0])


def beside(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    del rest
    return transposed(x, w, bias)


def placed(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, out: torch.Tensor) -> None:
    """Write to memory that is handed in."""
    torch.addmm(bias, x, w, out=out)
