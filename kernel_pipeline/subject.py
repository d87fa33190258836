"""A function with its inputs, as ``bench`` and ``compare`` time it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .arguments import Arguments, BenchError, Make, arguments, made
from .loading import Tensors
from .timing.stopwatch import Another

RING_SEED = 1 << 20
"""Added to the number of a further input set to get its seed for ``make``."""


@dataclass(frozen=True)
class Subject:
    """A function with the inputs that it is timed on.

    ``another(number)`` returns the tensors of a further input set; ``copies`` says that further sets are
    copies of the given inputs.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    another: Another
    copies: bool

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return self.arguments.tensors[0].device


def subject(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    make: Make | None,
    keywords: Mapping[str, Any] | None,
    name: str | None,
) -> Subject:
    """Return a function with the given inputs or the inputs that ``make`` makes. Raises BenchError if both or
    neither are given, and for an object that can't be called."""
    if not callable(function):
        raise BenchError(f"the function is {function!r}, which can't be called.")
    if (make is None) == (not inputs):
        raise BenchError("pass either the inputs of a call or make=, which makes them from a seed.")
    title = name or str(getattr(function, "__name__", type(function).__name__))
    if make is None:
        given = arguments(inputs, keywords)
        return Subject(title, function, given, lambda number: given.tensors, copies=True)
    first = made(make, 0, keywords)
    form = [(x.shape, x.stride(), x.dtype) for x in first.tensors]

    def another(number: int) -> Tensors:
        more = made(make, RING_SEED + number, keywords).tensors
        if [(x.shape, x.stride(), x.dtype) for x in more] != form:
            raise BenchError("make= must give tensors of the same shapes, strides and dtypes for every seed.")
        return more

    return Subject(title, function, first, another, copies=False)
