"""Prepare the weights among a kernel's inputs once for each set of inputs, outside of timed calls."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from .. import tracebacks
from ..contract import Provider
from ..loading import Loaded, Tensors, as_tuple
from .faults import FaultyError


class Weights:
    """The weights of a problem, and the function of a provider that prepares them.

    ``places`` are the weights' places among the inputs. ``least_ms`` is the shortest time that a call of the
    function took so far, in milliseconds; None before its first call.
    """

    def __init__(self, loaded: Loaded, provider: Provider, problem: Any) -> None:
        file, _, name = (provider.prepare or "").partition(":")
        self.places = loaded.weights()
        self.least_ms: float | None = None
        self._function: Callable[..., Any] = getattr(loaded.module(file), name)
        self._problem = problem
        self._first: Tensors = ()

    def taken(self, inputs: Tensors) -> Tensors:
        """Return the inputs as the provider's entry takes them: with the prepared tensors at the place of the
        first weight, and without the weights.

        Raises FaultyError if the function gives anything but plain tensors, or tensors of other shapes,
        strides or dtypes than for earlier weights.
        """
        weights = tuple(apart(x) for place, x in enumerate(inputs) if place in self.places)
        _synchronize(weights)
        begin = perf_counter()
        with torch.no_grad():
            made = as_tuple(self._function(self._problem, weights))
        _synchronize(weights)
        took_ms = (perf_counter() - begin) * 1e3
        self.least_ms = took_ms if self.least_ms is None else min(self.least_ms, took_ms)
        for one in made:
            if type(one) is not torch.Tensor:
                self._refuse(f"gives {type(one).__name__}, not a tensor or a tuple of tensors")
        self._first = self._first or made
        if list(map(_layout, made)) != list(map(_layout, self._first)):
            self._refuse("gives tensors of other shapes, strides or dtypes for other weights")
        others = tuple(x for place, x in enumerate(inputs) if place not in self.places)
        start = self.places[0]
        return *others[:start], *map(apart, made), *others[start:]

    def prepared(self, taken: Tensors) -> Tensors:
        """Return the prepared tensors among those that the entry takes."""
        start = self.places[0]
        return taken[start : start + len(self._first)]

    def given(self, taken: Tensors, inputs: Tensors) -> Tensors:
        """Return a set in the kernel's form: the weights of ``inputs``, and the others as the entry takes
        them."""
        start = self.places[0]
        others = iter((*taken[:start], *taken[start + len(self._first) :]))
        return tuple(x if place in self.places else next(others) for place, x in enumerate(inputs))

    def renew(self, taken: Tensors, inputs: Tensors) -> None:
        """Prepare the weights of ``inputs``, and write the result over the prepared tensors in ``taken``."""
        made = self.prepared(self.taken(inputs))
        with torch.no_grad():
            for x, new in zip(self.prepared(taken), made, strict=True):
                x.copy_(new)

    def _refuse(self, fault: str) -> None:
        raise FaultyError("runtime_error", tracebacks.said_of(self._function, fault))


def apart(x: torch.Tensor) -> torch.Tensor:
    """Return another tensor over the same memory, so that a provider can change only the values of ``x``."""
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def _layout(x: torch.Tensor) -> tuple[torch.dtype, torch.Size, tuple[int, ...]]:
    return x.dtype, x.shape, x.stride()


def _synchronize(tensors: Tensors) -> None:
    if any(x.is_cuda for x in tensors):
        torch.cuda.synchronize()
