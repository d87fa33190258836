"""Prepare a point to be called: load its library, make its inputs, bind its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch

from kernel_pipeline import loading, verification
from kernel_pipeline.contract import Provider
from kernel_pipeline.loading import Tensors, as_tuple
from kernel_pipeline.records.point import Point
from kernel_pipeline.timing.stopwatch import Another
from kernel_pipeline.timing.timers import Rotation, checked_outputs
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from pipeline.execution import interpreter
from pipeline.execution.faults import FaultyError
from pipeline.execution.protocol import InputValues
from pipeline.points import problems

RING_SEED = 1 << 20
"""The first seed of a ring's inputs. It need not be secret, for outputs are verified on other inputs."""


@dataclass(frozen=True)
class Instance:
    """A provider at a problem. ``call`` takes only inputs; ``library`` is the provider's loaded extension."""

    loaded: loading.Loaded
    provider: Provider
    problem: Any
    call: Callable[..., Any]
    library: Path | None

    def inputs(self, device: torch.device, seed: int) -> Tensors:
        """Make inputs of the problem on a device. On ``meta`` they have no data."""
        return self.loaded.inputs(self.problem, device, seed)

    def another(self, device: torch.device) -> Another | None:
        """Return a function that makes more inputs for a ring, in the form that the provider takes.

        Returns None where the elements of inputs may come in any order: then a ring moves those of the first.
        """
        if self.loaded.kernel.any_order:
            return None
        formed = loading.load(self.loaded.address(self.provider.name))
        return lambda number: formed.inputs(self.problem, device, RING_SEED + number)


def bytes_of(found: Instance, inputs: Tensors) -> int:
    """Return the bytes of an instance's inputs and outputs."""
    outputs = found.loaded.outputs(found.problem)
    return sum(x.nbytes for x in inputs) + sum(prod(shape) * dtype.itemsize for shape, dtype in outputs)


def standalone(where: str, point: Point, interpreted: bool = False) -> Instance:
    """Load an instance whose ``inputs`` are in the provider's form. See ``load_instance``."""
    return load_instance(loading.load(where).address(point.provider), point, interpreted)


def load_instance(where: str, point: Point, interpreted: bool = False) -> Instance:
    """Load the instance of a point of the kernel that ``where`` names.

    With ``interpreted`` it has the small problem that an interpreter gets. Raises whatever the kernel's
    files, the compiler or the loader raise.
    """
    loaded = loading.load(where)
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
    """Draw integers from -4 to 4, which every floating-point dtype represents."""
    return torch.randint(-4, 5, x.shape, generator=generator, device=x.device, dtype=torch.float32)


def _zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(x.shape, device=x.device)


KINDS: Mapping[InputValues, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "integers": _integers,
    "zeros": _zeros,
}


def fill(inputs: Tensors, kind: InputValues, seed: int) -> None:
    """Fill floating-point inputs with values of a kind; ``normal`` leaves the values that the kernel made."""
    if kind == "normal":
        return
    generator = torch.Generator(inputs[0].device).manual_seed(seed)
    for x in inputs:
        if x.is_floating_point():
            x.copy_(KINDS[kind](x, generator))


def call_all(call: Callable[..., Any], sets: Sequence[Tensors], places: Sequence[Tensors]) -> None:
    """Call on each set, and copy the outputs into the set's places at once.

    So the next call gets the same memory for its outputs, as in timing. A call in place has no places.
    """
    for inputs, of_set in zip(sets, places, strict=True):
        if of_set:
            # No variable may hold an output: the next call has to get its memory.
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


def apart(x: torch.Tensor) -> torch.Tensor:
    """Return another tensor over the same memory, so that a provider can change only the values of ``x``."""
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


def refuse_changed(given: tuple[Tensors, ...], inputs: Tensors) -> None:
    """Raise FaultyError if a provider changed its tensors of inputs in more than their values.

    It may have changed the class or the shape, or moved several sets to the same memory, which then stays in
    the cache.
    """
    for x, column in zip(inputs, zip(*given, strict=True), strict=True):
        for one in column:
            if type(one) is not torch.Tensor:
                raise FaultyError("incorrect", f"made its input one of class {type(one).__name__}")
            if (one.shape, one.stride(), one.dtype) != (x.shape, x.stride(), x.dtype):
                raise FaultyError("incorrect", f"made its input one of shape {tuple(one.shape)}, {one.dtype}")
        if x.numel() and len({one.data_ptr() for one in column}) < len(column):
            raise FaultyError("incorrect", "moved its inputs to other memory")


def memory_of(inputs: Tensors) -> list[tuple[int, int]]:
    """Return the address and the size in bytes of each input's memory."""
    return [(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in inputs]


def first_outputs(found: Instance, rotation: Rotation, again: bool) -> Tensors:
    """Call with output memory that held NaN or, for integers and flags, the largest value.

    With ``again``, and an output that is not floating-point, the memory most likely held zeros. An element
    that the provider does not write is hardly ever right both times.
    """
    outputs = found.loaded.outputs(found.problem)
    whole = not all(dtype.is_floating_point or dtype.is_complex for _, dtype in outputs)
    if again and whole and not rotation.in_place:
        _clear(rotation.outputs())
        return rotation.outputs()
    if found.provider.compiled or rotation.in_place:
        # torch.compile guards on the flag that poisons memory, and would compile with it and again without.
        return checked_outputs(rotation)
    with verification.poisoned_memory():
        return rotation.outputs()


@torch.no_grad()
def _clear(outputs: Tensors) -> None:
    for out in outputs:
        if isinstance(out, torch.Tensor):
            out.zero_()
