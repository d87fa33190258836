"""Make inputs and verify outputs, in a process that imports the reference and no provider.

The process sees outputs only as bytes in shared memory.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable
from math import prod
from time import perf_counter
from typing import Any

import torch

from .. import loading, problems, tracebacks, verification
from ..execution import instance
from ..loading import Tensors
from ..problems import values_of
from ..records.base import Record, Values
from ..timing.stopwatch import like_the_first, rolls, shifted, span_of
from ..timing.timers import spoil_one
from .audit import SHOWN
from .editions import Case, Edition, answered, case_of, declared_bytes
from .faults import FaultyError
from .files_read import listening
from .instance import call_all
from .protocol import (
    EDITIONS,
    Check,
    Checked,
    Done,
    Draw,
    Empty,
    Fill,
    InputValues,
    Inspect,
    Layout,
    Offer,
    Prepare,
    Prepared,
    Release,
    SetMode,
    Shared,
    Spread,
)
from .shared_memory import SharedMemory, layouts, memory_available

MOST_SPREAD = {"cpu": 1 << 30, "cuda": 20 << 30}
"""The maximum number of bytes of an audit's sets, by kind of device. There are two sets even if these take
more."""

SPREAD_OF_FREE = 4
"""An audit's sets take at most the free memory divided by this. Drawn inputs take as much again before they
are written, and the worker's outputs and the comparison need memory, too."""

DRAW_S = 0.1
"""The maximum number of seconds for making an audit's sets if the kernel's ``inputs`` makes each. There are
two sets even if these take longer."""

MOST_KEPT = {"cpu": 1 << 30, "cuda": 8 << 30}
"""The maximum number of bytes of inputs and answers that are kept, by kind of device. Every provider is
measured at the same problems."""

COMPARE_S = 0.03
"""Seconds for comparing the sets of one try. At least one set is compared."""

MOST_SEED = 1 << 31

REQUESTS = (Prepare, Offer, Check, Spread, Draw, Fill, Empty, Inspect, SetMode, Release)


class Verifier:
    """Make inputs and verify outputs on one device of this process."""

    def __init__(self, device: str, seed: int, descriptor: int, values: InputValues = "normal") -> None:
        self.device = torch.device(device)
        self._seed = seed
        self._values = values
        self._memory = SharedMemory(self.device, descriptor)
        self._case: Case | None = None
        self._cases: dict[tuple[str, Values], Case] = {}
        self._shared: Shared | None = None
        self._sets: Shared | None = None
        self._drawn: Tensors = ()
        self._places: list[Tensors] = []
        self._spoilt: Tensors = ()

    def answer(self, request: Record) -> Record:
        """Answer a request. Raises the reference's errors, and FaultyError if memory is short."""
        steps: dict[type[Record], Callable[[Any], Record]] = {
            Prepare: self.prepare,
            Offer: self.offer,
            Check: self.check,
            Spread: self.spread,
            Draw: self.draw,
            Fill: self.fill,
            Empty: self.empty,
            Inspect: self.inspect,
            SetMode: self.set_mode,
            Release: self.release,
        }
        return steps[type(request)](request)

    def prepare(self, request: Prepare) -> Prepared:
        """Find room for a problem's inputs and outputs. Raises FaultyError if there is none."""
        read = listening()
        loaded = loading.load(request.where)
        kernel = loaded.kernel
        problem = problems.make(kernel.problem, request.point.problem)
        interpreted = self.device.type == "cpu" and kernel.provider(request.point.provider).interpreted
        if interpreted:
            problem = kernel.interpreted(problem)
        key = (loaded.package, values_of(problem))
        self._forget()
        case = self._turned_to(key) or self._made_case(case_of(loaded, problem, key))
        self._shared = self._placed(1, 1)
        return Prepared(
            shared=self._shared,
            problem=key[1],
            interpreted=interpreted,
            bytes=sum(x.nbytes for x in self._edition(0).inputs) + declared_bytes(case.declared),
            any_answer=case.any_answer,
            edition_s=case.edition_s,
            read=read.outside(loaded.folder),
        )

    def offer(self, request: Offer) -> Done:
        """Write an edition of the inputs into shared memory, and wrong values into the outputs."""
        assert self._shared is not None, "there is room before there are inputs"
        edition = self._edition(request.edition)
        for x, layout in zip(edition.inputs, self._shared.inputs, strict=True):
            self._memory.span(layout).copy_(_flat(x))
        for layout, reference in zip(self._shared.outputs, edition.expected.reference, strict=False):
            out = self._memory.tensor(layout)
            if reference.shape == out.shape:
                out.copy_(verification.narrowed(reference, out.dtype))
            spoil_one(out)
        return self._done()

    def check(self, request: Check) -> Checked:
        """Check that shared memory holds the right answer to an edition and its unchanged inputs."""
        assert self._shared is not None, "there is room before there are outputs"
        return self._checked(self._edition(request.edition), self._shared, 0, 0)

    def spread(self, request: Spread) -> Shared:
        """Reserve room for the requested sets, or for as many as the limits allow."""
        case = self._case
        assert case is not None, "a problem is prepared before it is spread"
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.empty_cache()  # earlier comparisons took many times the outputs' bytes
        one = sum(x.nbytes for x in self._edition(0).inputs) + declared_bytes(case.declared)
        bytes_ = min(MOST_SPREAD[self.device.type], memory_available(self.device) // SPREAD_OF_FREE)
        most = bytes_ // max(1, one)
        if not case.loaded.kernel.any_order:
            begin = perf_counter()
            self._made(secrets.randbelow(MOST_SEED))
            self._done()
            most = min(most, int(DRAW_S / (perf_counter() - begin)))
        self._shared = None
        self._forget()
        sets = max(2, min(request.sets, most))
        self._sets = shared = self._placed(sets, min(SHOWN, sets) if on_gpu else sets)
        self._places = [
            tuple(self._memory.tensor(layout.at(place)) for layout in shared.outputs)
            for place in range(shared.shown)
        ]
        self._spoilt = tuple(torch.empty_like(place) for place in self._places[0])
        for out in self._spoilt:
            out.view(-1).view(torch.uint8).fill_(0xFF)  # NaN in floating-point dtypes
        return shared

    def draw(self, request: Draw) -> Done:
        """Make inputs for all sets that no call has seen.

        The kernel's ``inputs`` makes each set, or, where elements may come in any order, each set gets the
        shifted elements of an edition.
        """
        assert self._case is not None and self._sets is not None, "sets are spread before they are drawn"
        first, sets = self._edition(0).inputs, self._sets.sets
        drawn = self._drawn or tuple(x.new_empty((sets, span_of(x))) for x in first)
        if self._case.loaded.kernel.any_order:
            base, shift = self._edition(secrets.randbelow(EDITIONS)).inputs, secrets.randbelow(MOST_SEED)
            for x, rows in zip(base, drawn, strict=True):
                rolls(shifted(x, shift), sets, rows, first=0)
        else:
            for number in range(sets):
                made = self._made(secrets.randbelow(MOST_SEED))
                for x, rows in zip(made, drawn, strict=True):
                    rows[number].copy_(_flat(x))
        self._drawn = drawn
        return self._done()

    def fill(self, request: Fill) -> Done:
        """Write the drawn inputs, or those at the requested places, into all sets."""
        assert self._sets is not None and self._drawn, "sets are spread and drawn before they are filled"
        for place, (rows, layout) in enumerate(zip(self._drawn, self._sets.inputs, strict=True)):
            if request.places is not None and place not in request.places:
                continue
            self._memory.spans(layout, self._sets.sets).copy_(rows)
        return self._done()

    def empty(self, request: Empty) -> Done:
        """Do all that the worker does in a try except the calls. It spoils the place of each output."""
        assert self._sets is not None and self._places, "sets are spread before they are gone through"
        assert self._case is not None
        loaded, problem, spoilt = self._case.loaded, self._case.problem, self._spoilt
        count = len(loaded.kernel.bounded)
        is_placed = count > 0 and self.device.type == "cpu"
        if self.device.type == "cuda":
            torch.zeros(1, device=self.device)

        def idle(*inputs: torch.Tensor) -> Tensors:
            if is_placed:  # as the worker brings the outputs of each call to their bound
                loaded.placed(problem, spoilt[:-count])
            return spoilt

        call_all(idle, [()] * len(self._places), self._places)
        return self._done()

    def inspect(self, request: Inspect) -> Checked:
        """Check that sets hold right answers and unchanged inputs.

        Checks the first set, and further sets until one set is wrong or ``COMPARE_S`` has passed.
        """
        begin, shared = perf_counter(), self._sets
        assert self._case is not None and shared is not None and self._drawn
        for number, index in enumerate(request.sets):
            inputs = tuple(
                rows[index].as_strided(x.shape, x.stride(), rows[index].storage_offset())
                for x, rows in zip(self._edition(0).inputs, self._drawn, strict=True)
            )
            found = self._checked(answered(self._case, inputs), shared, index, shared.place_of(number, index))
            if found.error is not None or perf_counter() - begin > COMPARE_S:
                break
        return found

    def set_mode(self, request: SetMode) -> Done:
        """Do a little work on the device, which brings the launch gap of another process to its fast mode."""
        torch.zeros(1, device=self.device)
        return self._done()

    def release(self, request: Release) -> Done:
        """Free all memory."""
        self._case = self._shared = None
        self._forget()
        self._cases.clear()
        self._memory.release()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return Done()

    def _turned_to(self, key: tuple[str, Values]) -> Case | None:
        """Make the case with this key the current one, and return it; None if it is not kept.

        The case that was current is kept, and the least recently used cases are dropped beyond ``MOST_KEPT``.
        """
        if self._case is not None:
            if self._case.key == key:
                return self._case
            self._case.shrink()
            self._cases[self._case.key] = self._case
        self._case = self._cases.pop(key, None)
        held = {one: case.bytes for one, case in self._cases.items()}
        while held and sum(held.values()) > MOST_KEPT[self.device.type]:
            oldest = next(iter(held))
            del held[oldest], self._cases[oldest]
        return self._case

    def _made_case(self, case: Case) -> Case:
        """Make a case current, with its first two editions. Raises FaultyError if there is no room for it."""
        try:
            self._refuse_what_does_not_fit(case)
        except FaultyError:
            self.release(Release())
            self._refuse_what_does_not_fit(case)
        self._case = case
        try:
            first = self._edition(0)
            begin = perf_counter()
            second = self._edition(1)
            self._done()
            case.edition_s = perf_counter() - begin
            case.any_answer = verification.any_answer(first.expected, first.inputs, second.expected.reference)
        except BaseException:
            self._case = None
            raise
        return case

    def _forget(self) -> None:
        """Drop an audit's sets. On a GPU the memory of drawn inputs is freed, because the worker may need
        it."""
        had = bool(self._drawn)
        self._sets, self._drawn, self._places, self._spoilt = None, (), [], ()
        if had and self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _edition(self, number: int) -> Edition:
        case = self._case
        assert case is not None, "a problem is prepared before its inputs are made"
        if number not in case.editions:
            case.shrink()
            # The first edition is the same in every run; no provider can know later ones in advance.
            seed = secrets.randbelow(MOST_SEED) if number else self._seed
            case.editions[number] = answered(case, self._made(seed))
        return case.editions[number]

    def _made(self, seed: int) -> Tensors:
        """Make inputs by the kernel's ``inputs``.

        Raises FaultyError if they differ from the first edition in more than their values.
        """
        case = self._case
        assert case is not None, "a problem is prepared before its inputs are made"
        made = case.loaded.inputs(case.problem, self.device, seed)
        instance.fill(made, self._values, seed)
        if case.editions and not like_the_first(made, case.editions[0].inputs):
            function = case.loaded.module(case.loaded.kernel.reference).inputs
            where = tracebacks.said_of(function, "gives")
            raise FaultyError(
                "runtime_error", f"{where} inputs of other shapes, strides or dtypes for another seed"
            )
        return made

    def _placed(self, sets: int, shown: int) -> Shared:
        """Reserve shared memory for the inputs of ``sets`` sets and the outputs of ``shown`` of them."""
        assert self._case is not None, "a problem is prepared before it has room"
        case, inputs = self._case, self._edition(0).inputs
        # A call in place writes its outputs over its inputs.
        declared = () if case.loaded.kernel.in_place else case.declared
        found, offset = layouts(inputs, (), sets)
        places, size = layouts((), declared, shown)
        region = self._memory.reserve(offset + size)
        outputs = tuple(one.replace(offset=one.offset + offset) for one in places)
        return Shared(region=region, inputs=tuple(found), outputs=outputs, sets=sets, shown=shown)

    def _checked(self, edition: Edition, shared: Shared, number: int, place: int) -> Checked:
        in_place = not shared.outputs
        count = len(edition.expected.declared)
        found, at = (shared.inputs[:count], number) if in_place else (shared.outputs, place)
        verdict = verification.compare_all(self._seen(found, at), edition.expected)
        error = verdict.error
        kept = slice(count if in_place else 0, None)
        inputs = self._seen(shared.inputs[kept], number)
        if error is None and not verification.unchanged(inputs, edition.inputs[kept]):
            error = "changed its input"
        return Checked(
            error=error, max_abs_err=verdict.max_abs_err, max_rel_err=verdict.max_rel_err, used=verdict.used
        )

    def _seen(self, found: tuple[Layout, ...], number: int) -> Tensors:
        return tuple(self._memory.tensor(layout.at(number)).to(self.device) for layout in found)

    def _refuse_what_does_not_fit(self, case: Case) -> None:
        """Raise FaultyError, before anything is allocated, if a case needs more memory than is free.

        A host that runs out of memory kills processes instead of refusing an allocation.
        """
        inputs = sum(x.nbytes for x in case.loaded.inputs(case.problem, torch.device("meta"), 0))
        wide = 8 * sum(prod(shape) for shape, _ in case.declared)
        # Inputs: both editions, the shared ones, the worker's. Outputs: twice. References and temporaries.
        needed = (EDITIONS + 2) * inputs + 2 * declared_bytes(case.declared) + (EDITIONS + 2) * wide
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


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((span_of(x),), (1,))
