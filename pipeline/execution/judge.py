"""Makes inputs and verifies outputs, in a process that imports the reference and no provider, and that sees
outputs only as bytes in shared memory.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

import kernels
from kernels import Tensors
from kernels.contract import Tolerance
from pipeline.execution import values, verification
from pipeline.execution.faults import FaultyError
from pipeline.execution.protocol import (
    Check,
    Checked,
    CheckOne,
    Done,
    Fill,
    InputValues,
    Layout,
    Offer,
    Prepare,
    Prepared,
    Release,
    SetMode,
    Shared,
    Spread,
)
from pipeline.execution.shared_memory import SharedMemory, layouts, memory_available
from pipeline.execution.verification import Declared, Expected
from pipeline.points import problems
from pipeline.points.frozen import Record, Values
from pipeline.points.problems import values_of
from pipeline.timing.stopwatch import rolled, rolls, span_of, step_of

EDITIONS = 2
"""Inputs of a problem that differ in all values: the first call gets one, a timed call is verified by the
other."""

MOST_SPREAD = {"cpu": 256 << 20, "cuda": 2 << 30}
"""Bytes of the sets of an audit by kind of device, at most, unless two sets take more."""

REQUESTS = (Prepare, Offer, Check, Spread, Fill, CheckOne, SetMode, Release)


@dataclass(frozen=True)
class Edition:
    """Inputs and the right answer."""

    inputs: Tensors
    expected: Expected


@dataclass
class Case:
    """A kernel at a problem, with the editions that were made of it so far."""

    key: tuple[str, Values]
    loaded: kernels.Loaded
    problem: Any
    declared: tuple[Declared, ...]
    tolerances: tuple[Tolerance, ...]
    editions: dict[int, Edition] = field(default_factory=dict)


class Judge:
    """Makes inputs and verifies outputs on one device of this process."""

    def __init__(self, device: str, seed: int, descriptor: int, values: InputValues = "normal") -> None:
        self.device = torch.device(device)
        self._values = values
        # The first edition is the same in every run; what comes after it can't be known before.
        self._seeds = (seed, secrets.randbelow(1 << 31))
        self._memory = SharedMemory(self.device, descriptor)
        self._case: Case | None = None
        self._shared: Shared | None = None
        self._sets: Shared | None = None
        self._picked: tuple[int, Tensors] | None = None

    def answer(self, request: Record) -> Record:
        """The answer to any request. Raises whatever the reference does."""
        steps: dict[type[Record], Callable[[Any], Record]] = {
            Prepare: self.prepare,
            Offer: self.offer,
            Check: self.check,
            Spread: self.spread,
            Fill: self.fill,
            CheckOne: self.check_one,
            SetMode: self.set_mode,
            Release: self.release,
        }
        return steps[type(request)](request)

    def prepare(self, request: Prepare) -> Prepared:
        """Find room for a problem's inputs and outputs. Raises FaultyError if there is none."""
        loaded = kernels.load(request.where)
        kernel = loaded.kernel
        problem = problems.make(kernel.problem, request.point.problem)
        interpreted = self.device.type == "cpu" and kernel.provider(request.point.provider).interpreted
        if interpreted:
            problem = kernel.interpreted(problem)
        key = (loaded.package, values_of(problem))
        if self._case is None or self._case.key != key:
            self.release(Release())
            case = _case_of(loaded, problem, key)
            self._refuse_what_does_not_fit(case)
            self._case = case
        self._shared = self._placed(1)
        self._sets = self._picked = None
        return Prepared(
            shared=self._shared,
            problem=key[1],
            interpreted=interpreted,
            bytes=sum(x.nbytes for x in self._edition(0).inputs) + _bytes(self._case.declared),
        )

    def offer(self, request: Offer) -> Done:
        """Write an edition of the inputs into shared memory, and what can't be right into the outputs."""
        assert self._shared is not None, "there is room before there are inputs"
        edition = self._edition(request.edition)
        for x, layout in zip(edition.inputs, self._shared.inputs, strict=True):
            self._memory.span(layout).copy_(_flat(x))
        for layout, reference in zip(self._shared.outputs, edition.expected.reference, strict=False):
            out = self._memory.tensor(layout)
            if out.is_floating_point() or out.is_complex():
                out.fill_(float("nan"))
            else:
                wrong = reference.reshape(out.shape).to(out.dtype)
                out.copy_(wrong.logical_not_() if out.dtype == torch.bool else wrong.bitwise_not_())
        return self._done()

    def check(self, request: Check) -> Checked:
        """Whether shared memory holds the right answer to an edition, and its inputs as they were."""
        assert self._shared is not None, "there is room before there are outputs"
        return self._checked(self._edition(request.edition), self._shared, 0)

    def spread(self, request: Spread) -> Shared:
        """Room for so many sets, or for as many as may be shared: an even number."""
        assert self._case is not None, "a problem is prepared before it is spread"
        one = layouts(self._edition(0).inputs, self._case.declared)[1]
        most = MOST_SPREAD[self.device.type] // max(1, one)
        self._shared = None
        self._sets = self._placed(max(2, min(request.sets, most) // 2 * 2))
        return self._sets

    def fill(self, request: Fill) -> Done:
        """Write inputs that no call has seen into so many sets, and pick the one that will be checked."""
        assert self._case is not None and self._sets is not None, "sets are spread before they are filled"
        sets = request.sets
        # The picked one's answer costs as much as that of an edition, and is not known to anybody.
        edition = self._edition(secrets.randbelow(EDITIONS))
        shift = secrets.randbelow(1 << 30)
        base = tuple(rolled(x, shift) for x in edition.inputs)
        for x, layout in zip(base, self._sets.inputs, strict=True):
            rolls(x, sets, self._memory.spans(layout, sets), first=0)
        for layout in self._sets.outputs:
            # No number, of floating-point ones.
            self._memory.spans(layout, sets).view(torch.uint8).fill_(0xFF)
        number = secrets.randbelow(sets)
        inputs = tuple(rolled(x, number * step_of(span_of(x), sets)) for x in base)
        self._picked = number, inputs
        return self._done()

    def check_one(self, request: CheckOne) -> Checked:
        """Whether the picked set holds the right answer, and its inputs as they were."""
        assert self._case is not None and self._sets is not None and self._picked is not None
        number, inputs = self._picked
        return self._checked(_answered(self._case, inputs), self._sets, number)

    def set_mode(self, request: SetMode) -> Done:
        """Do a little work on the device, by which another process's launch gap becomes the fast one."""
        torch.zeros(1, device=self.device)
        return self._done()

    def release(self, request: Release) -> Done:
        """Let go of all memory."""
        self._case = self._shared = self._sets = self._picked = None
        self._memory.release()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return Done()

    def _edition(self, number: int) -> Edition:
        case = self._case
        assert case is not None, "a problem is prepared before its inputs are made"
        if number not in case.editions:
            inputs = case.loaded.inputs(case.problem, self.device, self._seeds[number])
            values.fill(inputs, self._values, self._seeds[number])
            case.editions[number] = _answered(case, inputs)
        return case.editions[number]

    def _placed(self, sets: int) -> Shared:
        """Room in shared memory for so many sets."""
        assert self._case is not None, "a problem is prepared before it has room"
        case, inputs = self._case, self._edition(0).inputs
        # The outputs of a call that is in place lie where its inputs were.
        declared = () if case.loaded.kernel.in_place else case.declared
        found, size = layouts(inputs, declared, sets)
        region = self._memory.reserve(size)
        count = len(inputs)
        return Shared(region=region, inputs=tuple(found[:count]), outputs=tuple(found[count:]), sets=sets)

    def _checked(self, edition: Edition, shared: Shared, number: int) -> Checked:
        in_place = not shared.outputs
        count = len(edition.expected.declared)
        found = shared.inputs[:count] if in_place else shared.outputs
        verdict = verification.compare_all(self._seen(found, number), edition.expected)
        error = verdict.error
        kept = slice(count if in_place else 0, None)
        inputs = self._seen(shared.inputs[kept], number)
        if error is None and not verification.unchanged(inputs, edition.inputs[kept]):
            error = "changed its input"
        return Checked(error=error, max_abs_err=verdict.max_abs_err, max_rel_err=verdict.max_rel_err)

    def _seen(self, found: tuple[Layout, ...], number: int) -> Tensors:
        return tuple(self._memory.tensor(layout.at(number)).to(self.device) for layout in found)

    def _refuse_what_does_not_fit(self, case: Case) -> None:
        """Said before anything is allocated, for a host that runs out of memory kills processes instead of
        answering."""
        inputs = sum(x.nbytes for x in case.loaded.inputs(case.problem, torch.device("meta"), 0))
        wide = 8 * sum(prod(shape) for shape, _ in case.declared)
        # Both editions, the shared ones and the worker's; outputs twice; references and temporaries.
        needed = (EDITIONS + 2) * inputs + 2 * _bytes(case.declared) + (EDITIONS + 2) * wide
        available = memory_available(self.device)
        if needed > available:
            raise FaultyError(
                "out_of_memory",
                f"needs about {needed / 1e9:.0f} GB for inputs and reference; "
                f"{available / 1e9:.0f} GB are free",
            )

    def _done(self) -> Done:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return Done()


def _case_of(loaded: kernels.Loaded, problem: Any, key: tuple[str, Values]) -> Case:
    declared = loaded.outputs(problem)
    tolerance = loaded.kernel.tolerance(problem)
    tolerances = tolerance if isinstance(tolerance, tuple) else (tolerance,) * len(declared)
    return Case(key, loaded, problem, declared, tolerances)


def _answered(case: Case, inputs: Tensors) -> Edition:
    """An edition of these inputs, which a reference may write to."""
    given = tuple(x.clone() for x in inputs) if case.loaded.kernel.in_place else inputs
    return Edition(
        inputs, Expected(case.loaded.expected(case.problem, given), case.declared, case.tolerances)
    )


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((span_of(x),), (1,))


def _bytes(declared: tuple[Declared, ...]) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in declared)
