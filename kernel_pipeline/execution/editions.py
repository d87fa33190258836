"""Editions: inputs of a problem with their right answers, which a verifier keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch

from .. import bounded, loading, tracebacks, verification
from ..contract import Tolerance
from ..loading import Tensors
from ..records.base import Values
from ..verification import Declared, Expected
from .faults import FaultyError
from .protocol import EDITIONS


@dataclass(frozen=True)
class Edition:
    """Inputs and the right answer."""

    inputs: Tensors
    expected: Expected


@dataclass
class Case:
    """A kernel at a problem, with the editions that were made so far."""

    key: tuple[str, Values]
    loaded: loading.Loaded
    problem: Any
    declared: tuple[Declared, ...]
    tolerances: tuple[Tolerance, ...]
    any_answer: str | None = None
    edition_s: float = 0.0
    editions: dict[int, Edition] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The bytes of the inputs and references of all editions."""
        held = (x for one in self.editions.values() for x in (*one.inputs, *one.expected.reference))
        return sum(x.nbytes for x in held if isinstance(x, torch.Tensor))

    def shrink(self) -> None:
        """Drop the editions that were made for one call each."""
        for later in [number for number in self.editions if number >= EDITIONS]:
            del self.editions[later]


def case_of(loaded: loading.Loaded, problem: Any, key: tuple[str, Values]) -> Case:
    """Return the case of a kernel at a problem, without editions."""
    declared = loaded.outputs(problem)
    return Case(key, loaded, problem, declared, tolerances_of(loaded, problem, declared))


def tolerances_of(
    loaded: loading.Loaded, problem: Any, declared: tuple[Declared, ...]
) -> tuple[Tolerance, ...]:
    """Return a kernel's tolerance for each output."""
    tolerance = loaded.kernel.tolerance(problem)
    return tolerance if isinstance(tolerance, tuple) else (tolerance,) * len(declared)


def answered(case: Case, inputs: Tensors) -> Edition:
    """Return the edition of these inputs. A reference that overwrites its inputs gets copies of them.

    Raises FaultyError if outputs can't be compared with the reference's answer.
    """
    given = tuple(x.clone() for x in inputs) if case.loaded.kernel.in_place else inputs
    return Edition(
        inputs, expected_of(case.loaded, case.problem, given, inputs, case.declared, case.tolerances)
    )


def expected_of(
    loaded: loading.Loaded,
    problem: Any,
    given: Tensors,
    inputs: Tensors,
    declared: tuple[Declared, ...],
    tolerances: tuple[Tolerance, ...],
) -> Expected:
    """Compute the right answer for ``inputs``.

    The reference gets ``given``, which are the inputs or copies that it may write to. Raises FaultyError if
    no output can be compared with the reference's answer.
    """
    reference = loaded.expected(problem, given)
    comparison = loaded.comparison()
    if comparison is not None:
        compare = partial(_compared, comparison, problem, inputs, reference)
        if loaded.kernel.draws:
            return Expected(reference, declared, tolerances, lambda outputs: compare(_stacked([outputs])))
        return Expected(reference, declared, tolerances, compare)
    if fault := verification.unfit(reference, loaded.returned(problem, reference)):
        function = loaded.module(loaded.kernel.reference).reference
        raise FaultyError("runtime_error", tracebacks.said_of(function, fault))
    if not (numbers := loaded.kernel.bounded):
        return Expected(reference, declared, tolerances)
    placed = loaded.placed(problem, reference)
    return Expected(placed, declared, tolerances, partial(_difference, placed, numbers, tolerances))


def _difference(
    reference: Tensors, numbers: Sequence[int], tolerances: Sequence[Tolerance], outputs: Tensors
) -> str | None:
    """Compare placed outputs with the reference's, the sizes before the elements. Return a clause that
    describes the first error, or None."""
    count = len(outputs) - len(numbers)
    names = [f"output {number}: " if count > 1 else "" for number in range(count)]
    for number, got, want in zip(numbers, outputs[count:], reference[count:], strict=True):
        if int(got) != int(want):
            return f"{names[number]}its size is {int(got)}, not {int(want)}"
    pairs = zip(bounded.trimmed(outputs, numbers), bounded.trimmed(reference, numbers), strict=True)
    for name, (out, right), tolerance in zip(names, pairs, tolerances, strict=False):
        if error := verification.compare(out, right, out.dtype, tolerance).error:
            return f"{name}{error}"
    return None


def _compared(
    comparison: Callable[[Any, Tensors, Tensors, Tensors], str | None],
    problem: Any,
    inputs: Tensors,
    reference: Tensors,
    outputs: Tensors,
) -> str | None:
    """Call a kernel's comparison. Raises FaultyError if it returns neither a sentence nor None."""
    said = comparison(problem, inputs, outputs, reference)
    if said is not None and not isinstance(said, str):
        fault = f"returned {type(said).__name__}, not a sentence that says what is wrong, or None"
        raise FaultyError("runtime_error", tracebacks.said_of(comparison, fault))
    return said


def compared_together(case: Case, edition: Edition, calls: Sequence[Tensors]) -> str | None:
    """Compare the random outputs of several calls on an edition by the kernel's own comparison."""
    comparison = case.loaded.comparison()
    assert comparison is not None, "a kernel with random outputs has a comparison"
    reference = edition.expected.reference
    return _compared(comparison, case.problem, edition.inputs, reference, _stacked(calls))


def _stacked(calls: Sequence[Tensors]) -> Tensors:
    """Return each output of all calls, stacked along a new first axis."""
    return tuple(map(torch.stack, zip(*calls, strict=True)))


def declared_bytes(declared: tuple[Declared, ...]) -> int:
    """Return the bytes of declared outputs."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in declared)
