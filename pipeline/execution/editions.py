"""Editions: inputs of a problem with their right answers, which a verifier keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch

from kernel_pipeline import loading, verification
from kernel_pipeline.contract import Tolerance
from kernel_pipeline.loading import Tensors
from kernel_pipeline.records.base import Values
from kernel_pipeline.verification import Declared, Expected
from pipeline.execution.faults import FaultyError
from pipeline.execution.protocol import EDITIONS
from pipeline.points import tracebacks


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
    """Return the edition of these inputs. A reference in place gets copies of them.

    Raises FaultyError for a reference whose answer outputs can't be compared with.
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

    The reference gets ``given``, which are the inputs or copies that it may write to. Raises FaultyError for
    a reference whose answer outputs can't be compared with.
    """
    reference = loaded.expected(problem, given)
    comparison = loaded.comparison()
    if comparison is not None:
        return Expected(
            reference, declared, tolerances, partial(_compared, comparison, problem, inputs, reference)
        )
    if fault := verification.unfit(reference, declared):
        function = loaded.module(loaded.kernel.reference).reference
        raise FaultyError("runtime_error", tracebacks.said_of(function, fault))
    return Expected(reference, declared, tolerances)


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


def declared_bytes(declared: tuple[Declared, ...]) -> int:
    """Return the bytes of declared outputs."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in declared)
