"""The declaration of a kernel as a function of tensors, in ``op.py`` of a kernel's folder.

A problem of the contract has the measured layout, such as a contiguous matrix; a user has tensors of any
shape. An ``Op`` holds the definition in torch. It maps a call to a problem, the call's tensors to the inputs
of a provider's entry, and the entry's outputs to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..declared import variables

Result = Any
"""A tensor, or a tuple of them."""


class NotServedError(Exception):
    """A call that is not a problem of the kernel, for example because of its dtype; the text is a sentence
    with the reason. Torch computes such a call."""


@dataclass(frozen=True)
class Derivative:
    """The derivative of an op with respect to its first (or only) output.

    keeps:
        The names of the values that are saved for the formula: arguments by name, ``out`` for the first
        output, ``outs`` for all outputs. ``x.shape`` saves only the shape of x, which the formula takes as
        ``x_shape``. An op saves no tensor that torch's own function does not save.
    formula:
        ``formula(grad, **kept)`` returns the gradients of the op's tensor arguments in their order, with None
        for a tensor without a gradient. It must consist of operators that torch can trace.
    only_for:
        Maps a kept tensor to the only input whose gradient needs it. If that gradient is not needed, the
        tensor is not saved, and the formula gets None.
    kernel:
        The name of the kernel that the formula calls, if its problem is that of the op. ``explain`` names its
        choice too.
    """

    keeps: tuple[str, ...]
    formula: Callable[..., tuple[torch.Tensor | None, ...]]
    only_for: Mapping[str, str] = field(default_factory=dict)
    kernel: str | None = None


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


def _contiguous(out: torch.Tensor, *args: Any) -> torch.Tensor:
    del args
    return out.contiguous()


@dataclass(frozen=True)
class Op:
    """A function of tensors that the providers of a kernel compute.

    definition:
        The function written in torch, with annotations. It gives the op its name, signature and docstring,
        computes calls that no provider takes, and determines the outputs' shapes and dtypes.
    problem:
        ``problem(*args)`` returns the kernel's problem for a call. It raises NotServedError for a call that
        is not a problem of the kernel. None for a function that only torch computes.
    refused:
        ``refused(*args)`` returns the reason why a call is invalid, as a clause, or None. An invalid call
        raises ValueError. Unknown values of options are refused in any case.
    inputs:
        ``inputs(*args)`` returns the tensors in the form that the kernel's entries take.
    result:
        ``result(made, *args)`` converts an entry's output to the function's result.
    laid_out:
        ``laid_out(out, *args)`` returns an output in the layout that the operator promises to torch.compile
        and autograd whatever the provider, copied if it has another. By default the layout is contiguous.
    derivative:
        The op's derivative. Without it a backward pass raises NotImplementedError.
    training:
        The kernel whose op is called instead if a gradient is needed; its further outputs save work in the
        backward pass. Its first output is this op's output.
    trains:
        ``trains(*args)`` says whether ``training`` takes the call. Torch computes other calls that need a
        gradient.
    with_options:
        The function with further options, which are passed by keyword, in operators that torch differentiates
        and traces. Users see its signature and docstring. The operator has none of these options.
    without_options:
        ``without_options(*args, **options)`` returns the arguments of an equal call without further options.
        It raises NotServedError for a call that only ``with_options`` computes, ValueError, with a sentence,
        for a call that is refused, and TypeError for an unknown option.
    """

    definition: Callable[..., Result]
    problem: Callable[..., Any] | None = None
    refused: Callable[..., str | None] = _never
    inputs: Callable[..., tuple[torch.Tensor, ...]] = _as_they_are
    result: Callable[..., Result] = _as_it_is
    laid_out: Callable[..., torch.Tensor] = _contiguous
    derivative: Derivative | None = None
    training: str | None = None
    trains: Callable[..., bool] = _always
    with_options: Callable[..., Result] | None = None
    without_options: Callable[..., tuple[Any, ...]] = _as_they_are

    @property
    def name(self) -> str:
        """The name of the function, and of the operator in ``torch.ops.kernel_pipeline``."""
        return self.definition.__name__


def dtype_name(x: torch.Tensor) -> str:
    """Return the name of a tensor's dtype, such as ``float32``."""
    return str(x.dtype).removeprefix("torch.")


def problem_of(declared: type, *tensors: torch.Tensor, **dimensions: Any) -> Any:
    """Return the problem with the given dimensions and the tensors' common dtype. Raises NotServedError, with
    a sentence, for an empty tensor, for tensors of several dtypes or devices, and for an invalid value of a
    dimension, such as an unknown dtype.
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
    """Return a tensor as a matrix whose rows run along the last dimension, without a copy if the strides
    allow it."""
    if x.dim() == 2:
        return x
    # With -1 torch can't infer the number of rows if there are no columns.
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) if x.dim() else x.reshape(1, 1)


def like(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return an entry's matrix in the shape of the original tensor."""
    return made if made.shape == x.shape else made.view(x.shape)
