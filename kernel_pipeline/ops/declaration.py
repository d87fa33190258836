"""The declaration of a kernel as a function of tensors, in ``op.py`` of a kernel's folder.

A problem of the contract has the measured layout, such as a matrix of a dtype; a user has a tensor of any
shape. An ``Op`` has the definition in torch, and maps a call to a problem, its tensors to the inputs of a
provider's entry, and the entry's outputs to the answer.
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
    """A call that is no problem of the kernel, for example by its dtype; the text is a sentence with the
    reason. Torch computes such a call."""


@dataclass(frozen=True)
class Derivative:
    """The gradient of an op that has one output, or of the first of its outputs.

    keeps:
        Names of arguments that the formula needs. ``out`` is the output, ``outs`` are all outputs, and
        ``x.shape`` is the shape of a tensor that is not kept itself, which the formula takes as ``x_shape``.
        An op keeps no tensor that torch's own function does not keep.
    formula:
        ``formula(grad, **kept)`` gives the gradients of the op's tensors, in their order, None for one
        that has none. It is made of operators that torch can trace.
    only_for:
        The one input whose gradient needs a kept tensor, by the tensor's name. If that gradient is not
        needed, the tensor is not kept, and the formula gets None.
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
        calls that no provider takes, and determines the outputs' shapes and dtypes.
    problem:
        ``problem(*args)`` returns the kernel's problem of a call. Raises NotServedError for a call that is
        none. None for a function that only torch computes.
    refused:
        ``refused(*args)`` returns the reason why a call is invalid, as a clause, or None. Such a call
        raises ValueError. Unknown values of options are refused without it.
    inputs:
        ``inputs(*args)`` returns the tensors as the kernel's entries take them.
    result:
        ``result(made, *args)`` converts an entry's output to the caller's.
    derivative:
        Its gradient. Without one a backward pass ends with an error.
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
        """The name of the function, and of the operator in ``torch.ops.kernel_pipeline``."""
        return self.definition.__name__


def dtype_name(x: torch.Tensor) -> str:
    """Return a tensor's dtype by name: ``float32``."""
    return str(x.dtype).removeprefix("torch.")


def problem_of(declared: type, *tensors: torch.Tensor, **dimensions: Any) -> Any:
    """Return the problem of these dimensions and of tensors that share a dtype. Raises NotServedError, with
    a sentence, for tensors that are empty or of several dtypes or devices, and for an unknown value of a
    dimension, such as a dtype.
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
    """Return a tensor as a matrix of its last dimension's rows, without a copy where its strides allow
    that."""
    if x.dim() == 2:
        return x
    # Not -1, from which torch can't derive the rows of a tensor without columns.
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.dim() else x.reshape(1, 1)


def like(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return an entry's matrix in the shape of the original tensor."""
    return made if made.shape == x.shape else made.view(x.shape)
