"""The arguments of a function and their checks.

Options are the kernel's ``arguments``, such as ``arithmetic`` and ``causal``; they take the values of the
dimension. Tensors must be dense.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import torch

from ..declared import Value, shown
from ..loading import Loaded


@dataclass(frozen=True)
class CallOption:
    """An option of a function: its name, position, default, and valid values."""

    name: str
    place: int
    default: object
    values: tuple[Value, ...]

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check the option in a call. Raises ValueError, with a sentence, for an unknown value."""
        value = args[self.place] if self.place < len(args) else kwargs.get(self.name, self.default)
        # A one-element tensor may compare equal to a value, but a plan does not depend on tensors' values.
        if isinstance(value, torch.Tensor) or value not in self.values:
            raise ValueError(f"{self.name} must be one of {self._listed()}, not {value!r}.")

    def _listed(self) -> str:
        return ", ".join(shown(one) for one in self.values)


@dataclass(frozen=True)
class TensorArgument:
    """A tensor argument of a function: its name, position, and whether it may be None."""

    name: str
    place: int
    is_optional: bool

    def check(self, args: Sequence[Any]) -> None:
        """Check the argument in a call. Raises TypeError, with a sentence, if it is not a dense tensor."""
        value = args[self.place] if self.place < len(args) else None
        if value is None and (self.is_optional or self.place >= len(args)):
            return
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{self.name} must be a tensor, not {type(value).__name__}.")
        if (kind := _kind(value)) is not None:
            raise TypeError(
                f"{self.name} must be a dense tensor, not a {kind} tensor: make it dense, or call torch's "
                "own function."
            )


def _kind(x: torch.Tensor) -> str | None:
    """Return ``jagged``, ``sparse_coo``, ``quantized`` or the like for a tensor that is not dense, else
    None."""
    with torch._C.DisableTorchFunctionSubclass():  # a subclass may override these attributes
        if x.layout is not torch.strided:
            return str(x.layout).removeprefix("torch.").lstrip("_")
        return "nested" if x.is_nested else "quantized" if x.is_quantized else None


def tensors_of(definition: Callable[..., Any]) -> tuple[TensorArgument, ...]:
    """Return the arguments that a function annotates as tensors."""
    hints = get_type_hints(definition)
    return tuple(
        TensorArgument(name, place, type(None) in get_args(hints[name]))
        for place, name in enumerate(inspect.signature(definition).parameters)
        if torch.Tensor in (hints[name], *get_args(hints[name]))
    )


def options_of(signature: inspect.Signature, loaded: Loaded) -> tuple[CallOption, ...]:
    """Return the options of a kernel's function."""
    dimensions = loaded.kernel.dimensions()
    found = []
    for place, parameter in enumerate(signature.parameters.values()):
        if dimension := loaded.kernel.dimension_of.get(parameter.name):
            values = dimensions[dimension].values
            if values is not None:
                found.append(CallOption(parameter.name, place, parameter.default, values))
    return tuple(found)
