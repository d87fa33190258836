"""Turn calls of any function into calls on tensors alone, so that timers can pass one input set after
another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .loading import Tensors
from .timing.stopwatch import spanned
from .verification import unchanged


class BenchError(Exception):
    """A function or its inputs can't be measured; the message says why and what to write instead."""


Make = Callable[[int], Any]
"""``make(seed)`` returns the inputs of a call: a tuple of arguments, or one tensor."""


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, split into tensors and the rest.

    ``leaves`` and ``spec`` are the flattened arguments, ``places`` the indices of the tensors in ``leaves``.
    ``plain`` says that all arguments are positional tensors. ``names`` are the names of the keywords if no
    argument is a container, else None.
    """

    tensors: Tensors
    leaves: tuple[Any, ...]
    spec: Any
    places: tuple[int, ...]
    plain: bool
    names: tuple[str, ...] | None

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as a function of the tensors alone."""
        if self.plain:
            return function

        def on_tensors(*tensors: torch.Tensor) -> Any:
            leaves = list(self.leaves)
            for place, tensor in zip(self.places, tensors, strict=True):
                leaves[place] = tensor
            if self.names is not None:
                count = len(leaves) - len(self.names)
                return function(*leaves[:count], **dict(zip(self.names, leaves[count:], strict=True)))
            arguments, keywords = tree_unflatten(leaves, self.spec)
            return function(*arguments, **keywords)

        return on_tensors


def arguments(given: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Arguments:
    """Split arguments into tensors and the rest. Tensors may be nested in lists, tuples and dictionaries.

    Raises BenchError if there is no tensor, if tensors are on several devices or on an unsupported device,
    and for tensors that are sparse, quantized or of a subclass.
    """
    leaves, spec = tree_flatten((tuple(given), dict(keywords or {})))
    places = tuple(place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    tensors = tuple(leaves[place].detach() for place in places)
    if not tensors:
        raise BenchError(
            "none of the arguments is a tensor: pass the inputs that the function is called with, or "
            "make=, which makes them from a seed."
        )
    for tensor in tensors:
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
            raise BenchError(
                f"an input is a {type(tensor).__name__} of layout {tensor.layout}: only plain, dense tensors "
                "can be copied into a ring of inputs. Pass the tensors that it is made of."
            )
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise BenchError(
            f"the inputs are on {' and '.join(devices)}: put all tensors on the device that is to be timed."
        )
    if devices[0].partition(":")[0] not in ("cpu", "cuda"):
        raise BenchError(
            f"the inputs are on {devices[0]}: only functions on a CPU or an NVIDIA GPU are timed."
        )
    flat = [*given, *(keywords or {}).values()]
    simple = len(flat) == len(leaves) and all(x is leaf for x, leaf in zip(flat, leaves, strict=True))
    plain = simple and not keywords and len(places) == len(leaves)
    return Arguments(tensors, tuple(leaves), spec, places, plain, tuple(keywords or ()) if simple else None)


def made(make: Make, seed: int, keywords: Mapping[str, Any] | None = None) -> Arguments:
    """Return the arguments that ``make`` returns for a seed."""
    given = make(seed)
    return arguments(given if isinstance(given, tuple) else (given,), keywords)


def tensors_of(output: Any) -> Tensors:
    """Return all tensors in a call's output, however nested."""
    return tuple(leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor))


def structure(output: Any) -> str:
    """Return the nesting of a call's output as text, in which a list and a tuple are the same."""
    if isinstance(output, torch.Tensor):
        return "tensor"
    if isinstance(output, (tuple, list)):
        return f"({', '.join(map(structure, output))}{',' * (len(output) == 1)})"
    if isinstance(output, dict):
        return f"{{{', '.join(f'{name!r}: {structure(one)}' for name, one in output.items())}}}"
    return repr(output) if output is None or isinstance(output, (int, str)) else type(output).__name__


def returns_tensors(output: Any) -> bool:
    """Whether an output is a tensor, or a tuple or list of tensors."""
    several = isinstance(output, (tuple, list)) and len(output) > 0
    return isinstance(output, torch.Tensor) or (several and all(isinstance(x, torch.Tensor) for x in output))


def copied(tensors: Tensors) -> Tensors:
    """Return copies of tensors with the same strides, including the memory between their elements."""
    return tuple(spanned(x).clone().as_strided(x.shape, x.stride()) for x in tensors)


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors are bitwise equal."""
    return unchanged((x,), (y,))


def overlaps(x: torch.Tensor) -> bool:
    """Whether several elements share memory, as in an expanded tensor."""
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that makes a GPU the current device; for a CPU it does nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def uuid_of(device: torch.device) -> str:
    """Return the UUID of a GPU in the form that NVML takes."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
