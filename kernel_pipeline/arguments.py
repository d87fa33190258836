"""Functions of any kind as calls on tensors alone, which timers can give one set of inputs after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .loading import Tensors
from .timing.stopwatch import span_of


class BenchError(Exception):
    """A function or its inputs can't be measured; the message says why and what to write instead."""


Make = Callable[[int], Any]
"""Makes the inputs of a call from a seed: a tuple of arguments, or one tensor."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a call: their tensors, and everything else in place. ``plain`` arguments are only
    tensors; ``names`` are those of the keywords, where no argument is a container."""

    tensors: Tensors
    leaves: tuple[Any, ...]
    spec: Any
    places: tuple[int, ...]
    plain: bool
    names: tuple[str, ...] | None

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one of the tensors alone."""
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
    """Split arguments into tensors and the rest. Tensors may stand in lists, tuples and dictionaries.

    Raises BenchError where there is no tensor, for tensors on several devices, and for those that are not
    plain (sparse, quantized, of a subclass).
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
    """The arguments that ``make`` makes from a seed."""
    given = make(seed)
    return arguments(given if isinstance(given, tuple) else (given,), keywords)


def tensors_of(output: Any) -> Tensors:
    """The tensors that a call returned, wherever they stand."""
    return tuple(leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, torch.Tensor))


def returns_tensors(output: Any) -> bool:
    """Whether a call returns one tensor, or a tuple or list of nothing else."""
    several = isinstance(output, (tuple, list)) and len(output) > 0
    return isinstance(output, torch.Tensor) or (several and all(isinstance(x, torch.Tensor) for x in output))


def spanned(x: torch.Tensor) -> torch.Tensor:
    """All the memory that a tensor spans, in one dimension."""
    return x.as_strided((span_of(x),), (1,))


def copied(tensors: Tensors) -> Tensors:
    """Copies of tensors with their strides: of all the memory that each spans."""
    return tuple(spanned(x).clone().as_strided(x.shape, x.stride()) for x in tensors)


def overlaps(x: torch.Tensor) -> bool:
    """Whether several elements share memory, as those of an expanded tensor do."""
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a GPU is the current one; for a CPU nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
