"""Run the modules of a problem's file and of its submissions as functions of tensors.

A call takes the problem's inputs, and then the weights that the problem's module has for the same seed. So
each set of inputs has new weights, and a submission computes with the reference's weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..arguments import Arguments, arguments, tensors_of
from ..loading import Tensors
from .formats import Sizes, UnfitError
from .imported import REFERENCE, ModuleFile, read
from .kernelbench import MODULE, PROBLEM
from .sources import Resized, imported, seeded

Slot = tuple[str, Callable[[torch.Tensor], None], torch.Tensor]
"""A tensor that a module holds: its name, a function that replaces it by another tensor, and the tensor."""

OWN_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""The relative and absolute tolerances of KernelBench's own judge, which calls ``torch.allclose`` (in its
``src/kernelbench/eval.py``, ``get_tolerance_for_precision``). Its versions 0 and 0.1 had 1e-2 for float32."""


@cache
def _module(path: Path, sizes: tuple[tuple[str, int], ...], device: str) -> ModuleType:
    return imported(path, Resized(dict(sizes), device), key=str(sizes))


def built(folder: Path, module: ModuleFile, sizes: Sizes, device: torch.device, seed: int) -> Any:
    """Make a module as KernelBench does: set the seed, then pass the problem's initial inputs. Its parameters
    need no gradients. The sizes are changed only in the problem's own file."""
    problem = _module(folder / PROBLEM, tuple(sizes.items()), device.type)
    own = _module(folder / module.file, tuple(sizes.items()) if module.name == MODULE else (), device.type)
    with seeded(seed, device):
        given = problem.get_init_inputs()
    with seeded(seed, device):
        made = getattr(own, module.name)(*given)
    return made.to(device).requires_grad_(False)


def called_with(folder: Path, sizes: Sizes, device: torch.device, seed: int) -> Arguments:
    """Return the arguments of a call, as the problem makes them for a seed. Raises BenchError if none is a
    tensor."""
    problem = _module(folder / PROBLEM, tuple(sizes.items()), device.type)
    with seeded(seed, device):
        return arguments(tuple(problem.get_inputs()))


def slots(module: Any) -> list[Slot]:
    """Return the tensors that a module holds as parameters, buffers and plain attributes, each once."""
    found: list[Slot] = []
    seen: set[int] = set()
    for path, one in module.named_modules():
        for kind in (one._parameters, one._buffers, one.__dict__):
            for name, x in kind.items():
                if isinstance(x, torch.Tensor) and id(x) not in seen:
                    seen.add(id(x))
                    put = (
                        partial(_put_data, x) if kind is one._parameters else partial(kind.__setitem__, name)
                    )
                    found.append((f"{path}.{name}".lstrip("."), put, x))
    return found


def _put_data(parameter: torch.Tensor, x: torch.Tensor) -> None:
    parameter.data = x


def drawn(first: Sequence[Slot], second: Sequence[Slot]) -> list[str]:
    """Return the names of the tensors that differ between two modules that were made from two seeds."""
    pairs = zip(first, second, strict=True)
    return [name for (name, _, x), (_, _, y) in pairs if x.shape != y.shape or not torch.equal(x, y)]


class KernelBenchCode:
    """The modules of a folder; ``learned`` are the names of the weights that depend on the seed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def learn(self, sizes: Sizes, device: torch.device) -> tuple[str, ...]:
        """Return the names of the weights."""
        modules = [built(self.folder, self.own, sizes, device, seed) for seed in (0, 1)]
        return tuple(drawn(*map(slots, modules)))

    def inputs(
        self, sizes: Sizes, device: torch.device, seed: int, learned: Sequence[str]
    ) -> tuple[Tensors, Tensors]:
        """Return the inputs, and then the weights of the problem's module for the same seed."""
        given = called_with(self.folder, sizes, device, seed).tensors
        if not learned:
            return given, ()
        held = {name: x for name, _, x in slots(built(self.folder, self.own, sizes, device, seed))}
        return given, tuple(held[name].detach() for name in learned)

    def answer(self, sizes: Sizes, device: torch.device, learned: Sequence[str]) -> Callable[..., Tensors]:
        """Return the problem's module in float64."""
        module = built(self.folder, self.own, sizes, device, 0).double()
        for _, put, x in slots(module):
            if x.is_floating_point():  # double() does not convert plain attributes
                put(x.double())
        bound = Bound(self.folder, module, module, sizes, device, learned)

        def answer(*tensors: torch.Tensor) -> Tensors:
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                wide = (x.to(torch.float64 if x.is_floating_point() else x.dtype, copy=True) for x in tensors)
                return tensors_of(bound(*wide))
            finally:
                torch.set_default_dtype(before)

        return answer

    def call(self, provider: ModuleFile, sizes: Sizes, device: torch.device, learned: Sequence[str]) -> Bound:
        """Return a provider's module. Raises UnfitError if it can't take the problem's weights."""
        made = built(self.folder, provider, sizes, device, 0)
        names = list(learned)
        if provider.file != PROBLEM:
            own = slots(built(self.folder, self.own, sizes, device, 0))
            other = slots(built(self.folder, provider, sizes, device, 1))
            names = counterparts(slots(made), other, [one for one in own if one[0] in names])
        call = torch.compile(made, dynamic=False) if provider.compiled else made
        return Bound(self.folder, made, call, sizes, device, names)

    def mode(self, sizes: Sizes, device: torch.device) -> str:
        """Return the mode that the problem's file leaves its module in, or both modes if parts differ."""
        parts = built(self.folder, self.own, sizes, device, 0).modules()
        return " and ".join(sorted({"train" if one.training else "eval" for one in parts}))

    def own_tolerance(self, dtype: torch.dtype) -> float:
        """Return the tolerance of KernelBench's own judge."""
        return OWN_TOLERANCES.get(dtype, OWN_TOLERANCES[torch.float32])

    def error(self, sizes: Sizes, inputs: Tensors, outputs: Tensors, learned: Sequence[str]) -> str | None:
        """Return None: the format has no checker."""
        return None

    @property
    def own(self) -> ModuleFile:
        """The problem's own module."""
        return read(self.folder).modules[REFERENCE]


class Bound:
    """A module with fixed sizes as a function of tensors: the inputs, and then the weights with these names.
    ``call`` is the module or its compiled form."""

    def __init__(
        self,
        folder: Path,
        module: Any,
        call: Callable[..., Any],
        sizes: Sizes,
        device: torch.device,
        names: Sequence[str],
    ) -> None:
        given = called_with(folder, sizes, device, 0)
        held = {name: put for name, put, _ in slots(module)}
        self._puts = [held[name] for name in names]
        self._inputs = len(given.tensors)
        self._call = given.call(call)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Put the weights into the module, and call it."""
        for put, x in zip(self._puts, tensors[self._inputs :], strict=True):
            put(x)
        return self._call(*tensors[: self._inputs])


def counterparts(held: Sequence[Slot], other: Sequence[Slot], weights: Sequence[Slot]) -> list[str]:
    """Return the names of a submission's tensors that correspond to the reference's weights, in the weights'
    order.

    ``held`` are the submission's tensors, made from the same seed as ``weights``; ``other`` are its tensors
    from another seed. A tensor corresponds to a weight if it has the weight's name and shape, or its values,
    or if it is the only tensor left of its shape. Raises UnfitError if a weight has no counterpart, or if the
    submission holds other tensors that depend on the seed, such as packed weights: these would not follow new
    weights.
    """
    tensors = {name: x for name, _, x in held}
    found: dict[str, str] = {}

    def fitting(weight: Slot, names: Iterable[str]) -> list[str]:
        used = found.values()
        return [name for name in names if name not in used and tensors[name].shape == weight[2].shape]

    def pair(choose: Callable[[Slot], str | None]) -> None:
        for weight in weights:
            if weight[0] not in found and (name := choose(weight)) is not None:
                found[weight[0]] = name

    def by_values(weight: Slot) -> str | None:
        names = fitting(weight, tensors)
        return next((name for name in names if torch.equal(tensors[name], weight[2])), None)

    def by_shape(weight: Slot) -> str | None:
        missing = [one for one in weights if one[0] not in found and one[2].shape == weight[2].shape]
        names = fitting(weight, random_ones)
        return names[0] if len(names) == len(missing) == 1 else None

    random_ones = drawn(held, other)
    pair(lambda weight: next((name for name in fitting(weight, tensors) if name == weight[0]), None))
    pair(by_values)
    pair(by_shape)
    left = [name for name in random_ones if name not in found.values()]
    if len(found) < len(weights):
        raise UnfitError(
            f"ModelNew has {_listed(held, [*found.values(), *left])}, and the reference has "
            f"{_listed(weights, [name for name, _, _ in weights])}: give ModelNew the reference's "
            "parameters, with the same names, or drawn in the same way"
        )
    if left:
        raise UnfitError(
            f"ModelNew computed {', '.join(left)} from its first weights, and weights are "
            "drawn anew with each set of inputs: compute it in forward()"
        )
    return [found[name] for name, _, _ in weights]


def _listed(held: Sequence[Slot], names: Sequence[str]) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, _, x in held if name in names) or "no weights"
