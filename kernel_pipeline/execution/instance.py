"""Prepare a point to be called: load its library, make its inputs, bind its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from .. import loading, problems, verification
from ..contract import Provider
from ..loading import Tensors, as_tuple
from ..records.point import Point
from ..timing.stopwatch import Another
from ..timing.timers import Rotation, checked_outputs
from ..toolchain import extension
from ..toolchain.extension import Place
from . import interpreter
from .faults import FaultyError
from .protocol import InputValues
from .weights import Weights

RING_SEED = 1 << 20
"""The first seed of a ring's inputs. It need not be secret, since outputs are verified on other inputs."""


@dataclass(frozen=True)
class Instance:
    """A provider at a problem.

    ``call`` takes only inputs, ``library`` is the provider's loaded extension, and ``weights`` prepare the
    weights among the inputs; None for a provider that takes them as they are.
    """

    loaded: loading.Loaded
    provider: Provider
    problem: Any
    call: Callable[..., Any]
    library: Path | None
    weights: Weights | None = None

    def inputs(self, device: torch.device, seed: int) -> Tensors:
        """Make inputs of the problem on a device, as ``call`` takes them. On ``meta`` they have no data."""
        return self.taken(self.loaded.inputs(self.problem, device, seed))

    def taken(self, inputs: Tensors) -> Tensors:
        """Return inputs as ``call`` takes them: with prepared weights."""
        return inputs if self.weights is None else self.weights.taken(inputs)

    def given(self, taken: Tensors, inputs: Tensors) -> Tensors:
        """Return a set in the kernel's form: ``taken``, but with the weights of ``inputs`` in place of
        prepared weights."""
        return taken if self.weights is None else self.weights.given(taken, inputs)

    def showing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with its outputs as processes share them: the call itself, unless the sizes of
        outputs depend on the data."""
        if not self.loaded.kernel.bounded:
            return call
        return lambda *inputs: self.loaded.placed(self.problem, as_tuple(call(*inputs)))

    def another(self, device: torch.device) -> Another | None:
        """Return a function that makes more inputs for a ring, in the form that the provider takes.

        Returns None if the elements of inputs may come in any order: then a ring permutes the elements of the
        first set. The elements of prepared weights may not.
        """
        if self.loaded.kernel.any_order and self.weights is None:
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
    call = loaded.call(provider, problem, point.parameters)
    weights = Weights(loaded, provider, problem) if provider.prepare is not None else None
    return Instance(loaded, provider, problem, call, library, weights)


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

    So the next call gets the same memory for its outputs, as in timing. A call that overwrites its inputs has
    no places.
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


def refuse_changed(given: tuple[Tensors, ...], inputs: Tensors) -> None:
    """Raise FaultyError if a provider changed its tensors of inputs in more than their values.

    It may have changed the class or the shape, or moved several sets to the same memory, which then stays in
    the cache.
    """
    for x, column in zip(inputs, zip(*given, strict=True), strict=True):
        for one in column:
            if type(one) is not torch.Tensor:
                raise FaultyError("incorrect", f"changed its input to class {type(one).__name__}")
            if (one.shape, one.stride(), one.dtype) != (x.shape, x.stride(), x.dtype):
                raise FaultyError("incorrect", f"changed its input to shape {tuple(one.shape)}, {one.dtype}")
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
