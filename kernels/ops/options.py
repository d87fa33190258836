"""The options of a function that take one of a few words, and the check of what a call gives for them.

They are the kernel's ``arguments``, as ``arithmetic`` and ``causal``, with the values of the dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels import Loaded
from kernels.contract import Value, shown


@dataclass(frozen=True)
class CallOption:
    """An option: its name, its place among the arguments, its default, and the values that it takes."""

    name: str
    place: int
    default: object
    values: tuple[Value, ...]

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises ValueError, with a sentence, where a call gives it a value that there is not."""
        value = args[self.place] if self.place < len(args) else kwargs.get(self.name, self.default)
        # A tensor of one truth value equals it, but a plan is for tensors of any value.
        if isinstance(value, torch.Tensor) or value not in self.values:
            raise ValueError(f"{self.name} must be one of {self._listed()}, not {value!r}.")

    def _listed(self) -> str:
        return ", ".join(shown(one) for one in self.values)


def options_of(signature: inspect.Signature, loaded: Loaded) -> tuple[CallOption, ...]:
    """The options of a kernel's function."""
    dimensions = loaded.kernel.dimensions()
    found = []
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name in loaded.kernel.arguments:
            values = dimensions[parameter.name].values
            if values is not None:
                found.append(CallOption(parameter.name, place, parameter.default, values))
    return tuple(found)
