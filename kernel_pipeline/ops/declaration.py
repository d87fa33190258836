"""How a kernel is called as a function of tensors: what ``op.py`` in a kernel's folder declares.

A problem of the contract has the layout that was measured: a matrix, rows of a dtype. A user has a tensor of
any shape. An ``Op`` says in torch what the function is, which problem a call is, how the tensors go into a
provider's entry and how its answer comes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..contract import variables

Result = Any
"""A tensor, or a tuple of them."""


class NotServedError(Exception):
    """A call that is no problem of the kernel's, as one of another dtype; the text is a sentence that says
    why. Such a call is torch's."""


@dataclass(frozen=True)
class Derivative:
    """The gradient of an op that has one output, or of the first of its outputs.

    keeps:
        Names of arguments that the formula needs. ``out`` is the output, ``outs`` are all outputs, and
        ``x.shape`` is the shape of a tensor that is not kept itself, which the formula takes as ``x_shape``.
        A tensor that torch's own function does not keep is not kept here.
    formula:
        ``formula(grad, **kept)`` gives the gradients of the op's tensors, in their order, None for one
        that has none. It is made of operators that torch can trace.
    only_for:
        The one input whose gradient needs a kept tensor, by the tensor's name. Where nobody wants that
        gradient, the tensor is not kept, and the formula gets None.
    """

    keeps: tuple[str, ...]
    formula: Callable[..., tuple[torch.Tensor | None, ...]]
    only_for: Mapping[str, str] = field(default_factory=dict)


def _as_they_are(*args: Any) -> tuple[torch.Tensor, ...]:
    return tuple(one for one in args if isinstance(one, torch.Tensor))


def _never(*args: Any) -> None:
    del args


def _always(*args: Any) -> bool:
    del args
    return True


def _as_it_is(out: Result, *args: Any) -> Result:
    del args
    return out


@dataclass(frozen=True)
class Op:
    """A function of tensors whose providers are a kernel's.

    definition:
        The function by torch alone, with annotations: its name, its signature, its docstring. It computes
        what no provider takes, and tells the outputs' shapes and dtypes.
    problem:
        ``problem(*args)``: which problem of the kernel a call is. Raises NotServedError where it is none.
        None for a function that only torch computes.
    refused:
        ``refused(*args)``: why there is no such function of these tensors, as a clause, or None. Such a call
        raises ValueError. Options with a value that the kernel's dimension does not have are refused without
        it.
    inputs:
        ``inputs(*args)``: the tensors as the kernel's entries take them.
    result:
        ``result(made, *args)``: what an entry gave, as the caller wants it.
    derivative:
        How it is differentiated. Without one a backward pass ends with a sentence.
    training:
        The op that is called instead where a gradient is wanted, because its further outputs save the
        backward pass work; its first output is this op's.
    trains:
        ``trains(*args)``: whether ``training`` is for such a call. Others are torch's with a gradient, too.
    """

    definition: Callable[..., Result]
    problem: Callable[..., Any] | None = None
    refused: Callable[..., str | None] = _never
    inputs: Callable[..., tuple[torch.Tensor, ...]] = _as_they_are
    result: Callable[..., Result] = _as_it_is
    derivative: Derivative | None = None
    training: Op | None = None
    trains: Callable[..., bool] = _always

    @property
    def name(self) -> str:
        """Of the function, and of the operator in ``torch.ops.kernel_pipeline``."""
        return self.definition.__name__


def dtype_name(x: torch.Tensor) -> str:
    """``float32`` of a tensor of torch.float32."""
    return str(x.dtype).removeprefix("torch.")


def problem_of(declared: type, *tensors: torch.Tensor, **dimensions: Any) -> Any:
    """The problem of these dimensions, of some tensors that share a dtype.

    Raises NotServedError, with a sentence, for tensors that are empty or of several dtypes or devices, and
    for a dimension's value that the problem does not have, as a dtype.
    """
    name = dtype_name(tensors[0])
    for x in tensors:
        if x.dtype != tensors[0].dtype or x.device != tensors[0].device:
            raise NotServedError(
                f"one tensor is {name} on {tensors[0].device}, another {dtype_name(x)} on {x.device}."
            )
        if x.numel() == 0:
            raise NotServedError(f"a tensor of shape {tuple(x.shape)} is empty.")
    given = {**dimensions, "dtype": name}
    for variable in variables(declared).values():
        try:
            variable.check(given[variable.name])
        except ValueError as error:
            raise NotServedError(f"{variable.name} {error}.") from None
    return declared(**given)


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    """A tensor as a matrix of its last dimension's rows, without a copy where its strides allow that."""
    if x.dim() == 2:
        return x
    # Not -1, which is no number of rows where there are no columns.
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.dim() else x.reshape(1, 1)


def like(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """What an entry made of a matrix, in the shape of the tensor that it was."""
    return made if made.shape == x.shape else made.view(x.shape)
