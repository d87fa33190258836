"""Inputs, right answers and providers of a kernel's folder, by way of the ``ProblemCode`` of its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from ..arguments import structure, tensors_of
from ..checking import DISTRIBUTIONS, Fill, filled, wide
from ..contract import Tolerance
from ..loading import Tensors
from ..problems import values_of
from ..tensors import dtype_of
from ..verification import compare
from . import folder as files
from .facts import ProblemFacts, facts_of
from .formats import ProblemCode, Sizes, code_of
from .imported import DISTRIBUTION, REFERENCE, ImportedFiles, read

FILLS: Mapping[str, Fill] = {
    **{name.replace(" ", "_").replace("-", "_"): fill for name, fill in DISTRIBUTIONS.items()},
    files.SIGNED: lambda x, limits: (
        x * (1 - 2 * (torch.arange(x.numel(), device=x.device) % 2)).view(x.shape)
    ),
    # A sum of a few such values is denormal, too.
    "denormal_values": lambda x, limits: x * (limits.tiny / 8),
    "negative_zeros": lambda x, limits: torch.full_like(x, -0.0),
}


NEIGHBOURS = 2
"""The number of pairs of neighbouring inputs. Their answers count as right, too."""

ROUNDING = 2.0**-21
"""The relative difference of neighbouring inputs: a few rounding errors of float32."""

UNCHANGED_SEED, CHANGES, FEWEST_CHANGES = 0, 1 / 1024, 4
"""The seed of the elements that ``CHANGED`` inputs share, and the share and the fewest of the others, on
average. A fingerprint of 64 elements seldom has one of them."""

SPECIAL_ELEMENTS = 4
"""The number of elements of each tensor that are NaN or infinite: so few that most of the answer stays
finite."""


class Reference:
    """The inputs and right answers of a folder's problem. The probe sets ``facts``, because the folder has no
    facts about the probed workload yet."""

    def __init__(self, folder: Path, facts: ProblemFacts | None = None) -> None:
        self.folder = folder
        self.facts = facts
        self._answers: dict[tuple[Any, ...], Callable[..., Tensors]] = {}

    def inputs(self, problem: Any, device: torch.device, seed: int) -> Tensors:
        """Return the inputs of a problem for a seed. The problem's distribution does not apply to weights."""
        if device.type == "meta":
            return tuple(
                torch.empty_strided(shape, strides, dtype=dtype_of(dtype), device=device)
                for shape, strides, dtype in facts_of(self.folder, values_of(problem)).inputs
            )
        varied, kept = self.parts(problem, device, seed)
        return (*varied, *kept)

    def parts(self, problem: Any, device: torch.device, seed: int) -> tuple[Tensors, Tensors]:
        """Return the inputs that the distribution applies to, and the others."""
        values = values_of(problem)
        sizes = self.imported.plain(values)
        learned = self._of(values).learned
        varied, kept = self.code.inputs(sizes, device, seed, learned)
        if values[DISTRIBUTION] == files.CHANGED:
            first, _ = self.code.inputs(sizes, device, UNCHANGED_SEED, learned)
            varied = tuple(_partly(x, new, seed) for x, new in zip(first, varied, strict=True))
        elif (special := files.SPECIAL.get(str(values[DISTRIBUTION]))) is not None:
            fills = (partial(_with, special, place) for place in range(len(varied)))
            varied = tuple(map(filled, varied, fills))
        elif values[DISTRIBUTION] not in (files.GIVEN, files.OWN_CHECK):
            varied = tuple(filled(x, FILLS[str(values[DISTRIBUTION])]) for x in varied)
        return varied, kept

    def outputs(self, problem: Any) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return the shape and dtype of each output."""
        facts = facts_of(self.folder, values_of(problem))
        return tuple((shape, dtype_of(dtype)) for shape, _, dtype in facts.outputs)

    def answer(self, tensors: Tensors, dimensions: Mapping[str, Any]) -> Tensors:
        """Return the right outputs: in float64, or as the problem's code computes them where it does not run
        in float64."""
        device = tensors[0].device
        key = (device, *dimensions.items())
        if key not in self._answers:
            facts, sizes = self._of(dimensions), self.imported.plain(dimensions)
            if self.imported.has_answer and facts.inexact is None:
                self._answers[key] = self.code.answer(sizes, device, facts.learned)
            else:
                own = self.imported.modules[REFERENCE]
                self._answers[key] = self.code.call(own, sizes, device, facts.learned)
        return tuple(x.detach() for x in tensors_of(self._answers[key](*tensors)))

    def comparison(self, problem: Any, inputs: Tensors, outputs: Tensors, reference: Tensors) -> str | None:
        """Return the error of outputs by the reference's answer and by the problem's own checker, or None."""
        facts = facts_of(self.folder, values_of(problem))
        sizes = self.imported.plain(values_of(problem))
        distribution = getattr(problem, DISTRIBUTION)
        if distribution == files.OWN_CHECK:
            return self.code.error(sizes, inputs, outputs, facts.learned)
        tolerances = [Tolerance(*one) for one in facts.tolerances]
        if _error(outputs, reference, tolerances) is not None:
            near = self.nearest(outputs, reference, inputs, problem)
            if (error := _error(outputs, near, tolerances)) is not None:
                return error
        # Its tolerances are those for its own inputs.
        if facts.tolerances and distribution != files.GIVEN:
            return None
        return self.code.error(sizes, inputs, outputs, facts.learned)

    def nearest(self, outputs: Tensors, right: Tensors, inputs: Tensors, problem: Any) -> Tensors:
        """Return, for each element of the outputs, the nearest of the right answers to inputs that differ
        from these by rounding errors of float32. Values that are rounded may differ by a step."""
        dimensions = {name: value for name, value in values_of(problem).items() if name != DISTRIBUTION}
        if self._of(dimensions).inexact is not None:
            return right
        found, generator = right, torch.Generator(inputs[0].device).manual_seed(0)
        for _ in range(NEIGHBOURS):
            signs = [
                torch.randint(0, 2, x.shape, generator=generator, device=x.device) * 2 - 1 for x in inputs
            ]
            for factor in (ROUNDING, -ROUNDING):
                moved = (
                    wide(x) * (1 + factor * sign) if x.is_floating_point() else x
                    for x, sign in zip(inputs, signs, strict=True)
                )
                answers = self.answer(tuple(moved), dimensions)
                found = tuple(map(_nearer, outputs, found, answers))
        return found

    @cached_property
    def code(self) -> ProblemCode:
        """The format's code."""
        return code_of(self.folder)

    @property
    def imported(self) -> ImportedFiles:
        """The folder's list."""
        return read(self.folder)

    def _of(self, dimensions: Mapping[str, Any]) -> ProblemFacts:
        """Return the facts of a workload, which are the same for every distribution."""
        if self.facts is not None:
            return self.facts
        return facts_of(self.folder, {**dimensions, DISTRIBUTION: files.GIVEN})


def _error(outputs: Tensors, right: Tensors, tolerances: Sequence[Tolerance]) -> str | None:
    """Return the error of the first wrong output, or None."""
    each = zip(outputs, right, tolerances, strict=False)
    errors = (compare(out, want, out.dtype, tolerance).error for out, want, tolerance in each)
    return next((error for error in errors if error is not None), None)


def _nearer(out: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the elements of two answers that are nearer to an output."""
    if out.shape != one.shape:
        return one
    far, near = ((out.double() - x.double()).abs() for x in (one, other))
    return other.where(near < far, one)


class Called:
    """A provider's entry. The first call of a workload makes its function."""

    def __init__(self, folder: Path, provider: str) -> None:
        self._provider = provider
        self._reference = Reference(folder)
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.__name__ = provider

    def __call__(self, *tensors: torch.Tensor, **dimensions: Any) -> Any:
        """Return the function's outputs, a tensor or a tuple of tensors.

        Raises TypeError if the outputs of the first call are nested otherwise than those of the problem's own
        code.
        """
        key = tuple(dimensions.values())
        call = self._made.get(key)
        if call is not None:
            made = call(*tensors)
        else:
            call, expected = self._function(tensors[0].device, dimensions)
            made = call(*tensors)
            if expected and (found := structure(made)) != expected:
                raise TypeError(f"it returns {found}, and the problem's own code returns {expected}")
            self._made[key] = call
        return made if isinstance(made, torch.Tensor) else tensors_of(made)

    def _function(self, device: torch.device, dimensions: Sizes) -> tuple[Callable[..., Any], str]:
        """Return the function of a workload, and the nesting of the right outputs; empty if the problem's own
        code has no answer to the given inputs."""
        imported, of = self._reference.imported, self._reference
        facts = facts_of(of.folder, {**dimensions, DISTRIBUTION: files.GIVEN})
        module = imported.modules[self._provider]
        call = of.code.call(module, imported.plain(dimensions), device, facts.learned)
        return call, facts.structure


def _with(values: Sequence[float], place: int, x: torch.Tensor, limits: torch.finfo) -> torch.Tensor:
    """Return the tensor of input ``place`` with a few elements of these values, in turn."""
    del limits
    made = x.clone(memory_format=torch.contiguous_format).view(-1)
    generator = torch.Generator().manual_seed(place)
    count = SPECIAL_ELEMENTS if made.numel() else 0
    for number, at in enumerate(torch.randint(max(made.numel(), 1), (count,), generator=generator).tolist()):
        made[at] = values[number % len(values)]
    return made.view(x.shape)


def _partly(x: torch.Tensor, new: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a floating-point tensor ``x`` with few elements of ``new``."""
    if not x.is_floating_point():
        return x
    generator = torch.Generator(x.device).manual_seed(seed)
    share = max(CHANGES, FEWEST_CHANGES / max(x.numel(), 1))
    return new.where(torch.rand(x.shape, generator=generator, device=x.device) < share, x)
