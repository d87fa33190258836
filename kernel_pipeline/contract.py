"""The contract between a kernel and the pipeline: everything that a kernel's author needs to read.

A kernel is an operation: its problems, its inputs, its reference answer, and the least work of a problem. A
provider is one implementation of a kernel, with its own parameters. A kernel's folder holds the declaration
in ``__init__.py``, the reference in ``reference.py``, and the files that the providers' entries name. The
declaration must not import torch, so that commands that only plan start at once. The contract does not depend
on timing, DVC, Hydra or MLflow.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from .declared import ContractError, Value, Variable, variables
from .provider import LANGUAGE_PACKAGES, LANGUAGES, Gpu, Provider, nothing_against

__all__ = [
    "EPSILON",
    "ITEM_BYTES",
    "LANGUAGES",
    "LANGUAGE_PACKAGES",
    "Gpu",
    "Kernel",
    "Provider",
    "Tolerance",
    "Work",
    "as_it_is",
    "at_least",
    "bytes_of",
    "nothing_against",
    "one_of",
    "same_as",
    "summary",
]

EPSILON = {
    **{"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7},
    **{"float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3},
    **{"float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2, "float8_e8m0fnu": 1.0},
}
"""Machine epsilon by dtype: the distance from 1 to the next larger number, as ``torch.finfo`` gives it. The
unit in the last place of a number x is between ``epsilon / 2 * abs(x)`` and ``epsilon * abs(x)``."""

ITEM_BYTES = {
    **{"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2},
    **{"int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4, "complex64": 8, "complex128": 16},
    **{"float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1},
}
"""Bytes of an element, by dtype."""


def one_of(
    *values: Value, default: Value | None = None, unit: str | None = None, omit_default: bool = False
) -> Any:
    """Declare a dimension or parameter that takes one of the given values. The first value is the default
    unless ``default`` is given.

    ``unit`` shortens labels: with ``unit="w"`` eight warps are ``8w``, with ``unit=""`` a block size is the
    number alone. Without a unit the label is ``name=value``. With ``omit_default`` labels omit the variable
    at its default, and a configuration that does not name it means the default. A point omits such a
    dimension at its default, too, so rows measured before the dimension was declared keep their points.
    """
    chosen = values[0] if default is None else default
    if chosen not in values:
        raise ContractError(
            f"the default {chosen!r} is not one of the values {', '.join(map(repr, values))}."
        )
    return field(default=chosen, metadata={"values": values, "unit": unit, "omit_default": omit_default})


def at_least(least: int) -> Any:
    """Declare a required dimension of whole numbers with another lower bound than 1. ``at_least(0)`` allows
    tensors without elements."""
    return field(metadata={"least": least})


def same_as(name: str) -> Any:
    """Declare a dimension that defaults to the value of the dimension ``name``."""
    return field(default=None, metadata={"same_as": name})


@dataclass(frozen=True)
class Tolerance:
    """The largest error allowed against the reference: ``|out - ref| <= atol + rtol * |ref|``. For complex
    numbers it holds for the real and the imaginary part.

    The reference is computed in float64 from inputs that are already rounded to their dtype. With ``rtol`` at
    ``EPSILON[dtype]`` an output may be off by one unit in the last place; rounding the output takes half of
    that. A wider tolerance hides mistakes: give its reason in a comment.
    """

    rtol: float
    atol: float


@dataclass(frozen=True)
class Work:
    """The least work of a problem.

    ``bytes`` is the memory traffic with each input read once and each output written once. ``operations``
    counts operations by arithmetic: ``float32``, ``tf32``, ``bfloat16``, ``float16``, ``float8_e4m3fn``,
    ``float8_fast_accum``, ``int8``.
    """

    bytes: int
    operations: Mapping[str, int]

    @property
    def flops(self) -> int:
        """The sum of the operations of all arithmetics."""
        return sum(self.operations.values())


def as_it_is(problem: Any) -> Any:
    """Return the problem itself: the default ``interpreted``, for a kernel that an interpreter runs whole."""
    return problem


@dataclass(frozen=True)
class Kernel:
    """An operation, its reference and its providers.

    problem:
        A frozen dataclass of the problem's dimensions, including the dtype and other words. A dimension of
        type ``tuple[int, ...]`` is a list of whole numbers, such as the rows of each group.
    size:
        The dimensions that a single size stands for.
    work:
        ``work(problem)`` returns the least work, as the kernel's docstring counts it.
    tolerance:
        ``tolerance(problem)`` returns the tolerance of all outputs, or a tuple with one for each output.
    headline:
        The rate that is shown for the kernel: ``gbps`` or ``tflops``.
    arguments:
        The dimensions that entries and the reference take as named arguments besides the inputs, because they
        do not follow from an input's shape or dtype, such as ``causal``. A mapping also renames them:
        ``{"seed": "dropout_seed"}`` passes the dimension ``dropout_seed`` as ``seed``, which is no name of a
        dimension because it is an option of the command line.
    weights:
        The names of the reference's arguments that are weights, such as ``("w", "bias")``, which a provider
        may prepare. Each set of inputs has new weights, so a provider that keeps earlier weights is wrong.
    in_place:
        Whether entries overwrite the first inputs with the outputs, and return these or nothing.
    destination:
        ``first`` or ``last`` if entries get memory for their outputs before or after the inputs, and write
        the outputs there; what they return is ignored. Each call gets new memory with undefined content.
        Outputs that ``outputs`` names are handed in by name.
    workspaces:
        The function in the reference's file that returns the shape and dtype of each workspace, like
        ``outputs``. A workspace is memory with undefined content for a call's own use. Workspaces are handed
        in between the inputs and the outputs, or by name.
    bounded:
        The numbers of the outputs whose size depends on the data. The first axis of such an output has at
        most the size that ``outputs`` declares. The reference returns the right size, which is compared
        before the elements.
    reference:
        The file that defines three functions. ``inputs(problem, device, seed)`` returns seeded random
        tensors, never zeros: a tuple, whose items may also be lists and tuples of tensors or None, or a
        mapping of such items, which are then passed by name. ``reference(*inputs, **arguments)`` returns the
        answer in float64, or exactly in integers. ``outputs(problem)`` returns the shape and dtype of each
        output, in the structure in which they are returned: a list, with lists in it, or a mapping.
    interpreted:
        ``interpreted(problem)`` returns the problem, reduced to a size that an interpreter runs in seconds.
    largest:
        The largest finite magnitude of an input for which the tolerance is guaranteed.
    any_order:
        Whether each input stays valid with its elements in any other order. Inputs must then have no
        structure (sorted, symmetric, normalised), and must not hold indices into each other. Further sets
        are then made by permuting the first set, where ``inputs`` would take too long.
    comparison:
        The function in the reference's file that verifies outputs, for a kernel with more than one right
        answer. ``f(problem, inputs, outputs, reference)`` returns a sentence that describes the error, or
        None. It replaces the tolerance. ``inputs`` are in their structure, ``outputs`` are in a row, and
        ``reference`` is the reference's result, of any shape.
    draws:
        For outputs that are drawn at random: the number of calls on the same inputs that are verified
        together, at least 2. ``comparison`` gets each output of one call or more, stacked along a new first
        axis, and tests their distribution. A right provider must fail less than once in a million calls;
        ``kernel_pipeline.chance`` has tests of that kind. Two calls must differ. Outputs that follow a seed
        among the inputs or arguments need neither.
    peak_memory:
        Whether the memory of a call is measured: the most bytes that it allocates through torch at a time,
        beyond its inputs and outputs. One more call after the timing measures it.
    host_time:
        Whether the time until a call on a GPU returns to the host is measured, by a few more calls after the
        timing.
    as_made:
        Whether the tolerance is guaranteed only for inputs as ``inputs`` makes them: finite and of that
        magnitude.
    baseline:
        The provider that the other providers are compared with ("x torch").
    """

    problem: type
    size: tuple[str, ...]
    work: Callable[[Any], Work]
    tolerance: Callable[[Any], Tolerance | tuple[Tolerance, ...]]
    providers: Sequence[Provider]
    headline: str = "gbps"
    arguments: tuple[str, ...] | Mapping[str, str] = ()
    weights: tuple[str, ...] = ()
    in_place: bool = False
    destination: str | None = None
    workspaces: str | None = None
    bounded: tuple[int, ...] = ()
    reference: str = "reference.py"
    interpreted: Callable[[Any], Any] = as_it_is
    any_order: bool = False
    comparison: str | None = None
    largest: float = math.inf
    as_made: bool = False
    draws: int = 0
    peak_memory: bool = False
    host_time: bool = False
    baseline: str = "torch"

    def __post_init__(self) -> None:
        known = variables(self.problem)
        for name in (*self.size, *self.dimension_of.values()):
            if name not in known:
                raise ContractError(f"{name} is not a dimension; the problem has {', '.join(known)}.")
        if lists := [name for name in self.size if known[name].type is tuple]:
            raise ContractError(f"{', '.join(lists)} is a list: size names dimensions of one number.")
        if self.headline not in ("gbps", "tflops"):
            raise ContractError(f"headline must be gbps or tflops, not {self.headline!r}.")
        if self.draws and (self.draws < 2 or self.comparison is None):
            raise ContractError("draws needs two calls or more, and a comparison that tests their outputs.")
        self._check_calls()
        names = [provider.name for provider in self.providers]
        if self.baseline not in names:
            raise ContractError(
                f"baseline {self.baseline!r} is not a provider; there are {', '.join(names)}."
            )
        if len(set(names)) < len(names):
            raise ContractError(f"two providers have the same name: {', '.join(names)}.")
        sources = {provider.extension for provider in self.providers if provider.extension}
        stems = [PurePosixPath(source).stem for source in sources]
        if len(set(stems)) < len(stems):
            written = ", ".join(sorted(sources))
            raise ContractError(f"two extensions differ only in their suffix: {written}. Rename one.")
        self._check_steps()
        for provider in self.providers:
            if provider.prepare is not None and not self.weights:
                raise ContractError(
                    f"{provider.name} has prepare, but the kernel names no weights: write weights=(...)."
                )
            if clash := known.keys() & provider.variables().keys():
                raise ContractError(
                    f"{', '.join(clash)} of {provider.name} is also the name of a dimension; rename it."
                )
            if lists := [name for name, one in provider.variables().items() if one.type is tuple]:
                raise ContractError(f"{', '.join(lists)} of {provider.name} is a list: declare its numbers.")

    def _check_steps(self) -> None:
        """Raise ContractError if one provider declares steps, and the baseline or one of ours does not."""
        have = [one.name for one in self.providers if one.steps is not None]
        lack = [
            one.name
            for one in self.providers
            if one.steps is None and (one.is_own or one.name == self.baseline) and not one.compiled
        ]
        if have and lack:
            raise ContractError(f"{have[0]} has steps, but not {', '.join(lack)}: declare all or none.")

    def _check_calls(self) -> None:
        if self.destination not in (None, "first", "last"):
            raise ContractError(f"destination must be first or last, not {self.destination!r}.")
        if self.in_place and (self.destination or self.bounded):
            raise ContractError("in_place outputs are inputs: leave out destination and bounded.")
        if self.destination and self.bounded:
            raise ContractError("bounded outputs are returned: leave out destination.")

    def provider(self, name: str) -> Provider:
        """Return the provider of this name. Raises KeyError for an unknown name."""
        return {provider.name: provider for provider in self.providers}[name]

    @property
    def dimension_of(self) -> dict[str, str]:
        """The dimension that each argument of entries and of the reference stands for."""
        named = self.arguments
        return dict(named) if isinstance(named, Mapping) else {name: name for name in named}

    def dimensions(self) -> Mapping[str, Variable]:
        """Return the problem's dimensions, in their order, read-only."""
        return variables(self.problem)


def bytes_of(dtype: str, *shapes: Sequence[int]) -> int:
    """Return the total bytes of contiguous tensors of one dtype with the given shapes."""
    return ITEM_BYTES[dtype] * sum(map(math.prod, shapes))


def summary(module: types.ModuleType) -> str:
    """Return the first paragraph of a kernel's docstring, on one line."""
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
