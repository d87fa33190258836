"""A point made ready to call: its library loaded, its inputs on a device, its parameters filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

import kernels
from kernels import Tensors, as_tuple
from kernels.contract import Provider
from pipeline.execution import interpreter
from pipeline.execution.protocol import InputValues
from pipeline.points import problems
from pipeline.points.point import Point
from pipeline.timing.stopwatch import Another
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Place

RING_SEED = 1 << 20
"""The first seed of the inputs of a ring. No secret: other inputs are verified."""


@dataclass(frozen=True)
class Instance:
    """A provider at a problem: ``call`` takes inputs alone. ``library`` is the extension that was loaded for
    it."""

    loaded: kernels.Loaded
    provider: Provider
    problem: Any
    call: Callable[..., Any]
    library: Path | None

    def inputs(self, device: torch.device, seed: int) -> Tensors:
        """Inputs of the problem on a device; without data on ``meta``."""
        return self.loaded.inputs(self.problem, device, seed)

    def another(self, device: torch.device) -> Another | None:
        """What makes more inputs for a ring, in the form that the provider takes; None where the elements of
        those that there are may come in any order."""
        if self.loaded.kernel.any_order:
            return None
        formed = kernels.load(self.loaded.address(self.provider.name))
        return lambda number: formed.inputs(self.problem, device, RING_SEED + number)


def bytes_of(found: Instance, inputs: Tensors) -> int:
    """Of an instance's inputs and its outputs."""
    outputs = found.loaded.outputs(found.problem)
    return sum(x.nbytes for x in inputs) + sum(prod(shape) * dtype.itemsize for shape, dtype in outputs)


def standalone(where: str, point: Point, interpreted: bool = False) -> Instance:
    """The same as ``load_instance`` of a point whose inputs nobody else makes: they are in the provider's
    form."""
    return load_instance(kernels.load(where).address(point.provider), point, interpreted)


def load_instance(where: str, point: Point, interpreted: bool = False) -> Instance:
    """The instance of a point of the kernel that ``where`` names, with the small problem that an interpreter
    is given if it is ``interpreted``.

    Raises whatever the kernel's files, the compiler or the loader raise.
    """
    loaded = kernels.load(where)
    provider = loaded.kernel.provider(point.provider)
    problem = problems.make(loaded.kernel.problem, point.problem)
    if interpreted:
        problem = loaded.kernel.interpreted(problem)
        interpreter.mend()
    library = None
    if provider.extension is not None:
        library = extension.load(Place.for_kernel(loaded), provider.extension)
    call = partial(loaded.entry(provider), **loaded.arguments(problem), **point.parameters)
    return Instance(loaded, provider, problem, call, library)


def _integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """From -4 to 4, which every floating-point dtype holds."""
    return torch.randint(-4, 5, x.shape, generator=generator, device=x.device, dtype=torch.float32)


def _zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(x.shape, device=x.device)


KINDS: Mapping[InputValues, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "integers": _integers,
    "zeros": _zeros,
}


def fill(inputs: Tensors, kind: InputValues, seed: int) -> None:
    """Write values of a kind into those inputs that hold floating-point numbers; ``normal`` leaves what the
    kernel made."""
    if kind == "normal":
        return
    generator = torch.Generator(inputs[0].device).manual_seed(seed)
    for x in inputs:
        if x.is_floating_point():
            x.copy_(KINDS[kind](x, generator))


def call_all(call: Callable[..., Any], sets: Sequence[Tensors], places: Sequence[Tensors]) -> None:
    """Call on each set, and copy the outputs into its places at once: the next call gets the same memory for
    its own, as it does where calls are timed. A call that writes over its inputs has no places."""
    for inputs, of_set in zip(sets, places, strict=True):
        if of_set:
            # No name here holds an output while the next call looks for memory.
            _copy(of_set, as_tuple(call(*inputs)))
        else:
            call(*inputs)


def _copy(places: Tensors, outputs: Tensors) -> None:
    for place, out in zip(places, outputs, strict=True):
        if out.requires_grad:
            with torch.no_grad():
                place.copy_(out)
        else:
            place.copy_(out)
