"""What becomes of a point: a worker runs the provider, a judge verifies what it gave, and the clock of this
process, in which neither runs, bounds what the worker says of the time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import ceil, inf
from time import perf_counter
from typing import TypeVar

from pipeline.execution.partner import FailedError
from pipeline.execution.protocol import (
    EDITIONS,
    Again,
    Arm,
    Begin,
    Check,
    Checked,
    CheckOne,
    Done,
    Draw,
    End,
    Ended,
    Fill,
    Go,
    Offer,
    Prepare,
    Prepared,
    Ran,
    Shared,
    Spread,
    Time,
    Timed,
)
from pipeline.points.frozen import Record
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary
from pipeline.store.record import Outcome, Timing

A = TypeVar("A", bound=Record)

AUDIT_US = 4000.0
"""The work of half an audit's calls by the time that is audited."""

MESSAGES_US = 5000.0
"""What an audit's four messages take at most on a busy machine, and what a GPU takes to wake."""

MOST_CALLS = 128
"""Calls of half an audit at most."""

ATTEMPTS = 8
"""A neighbour may take the machine for some milliseconds, but not each time."""

BUSY = 0.05
"""The share of an attempt for which the worker's threads may wait for a core, for it to say that a call is
slow. What a call takes at most, it says also if they wait for longer."""

FACTOR = 4.0
"""How many times its timing a call may take as seen from outside, where its outputs are copied: what only
moves memory takes twice as long so."""

SLACK_US = {"graph": 5.0, "perf_counter": 20.0}
"""What copying outputs and going round the sets adds to a call, by timer."""

SOON_S = {True: 0.5, False: 0.1}
"""For so long a provider is tried on further inputs before it is timed: where it is interpreted, and where it
is not. An interpreted one gets two however long they take, for no other call is verified."""

MOST_EDITIONS = 6
"""Inputs that a provider is tried on before it is timed at most."""

SLACK_OF_OTHERS_US = 200.0
"""The same where the host launches each call."""


class Ask:
    """Requests to one process: its answer, or FailedError or GoneError."""

    def __init__(self, ask: Callable[[Record, type[Record]], Record]) -> None:
        self._ask = ask

    def __call__(self, request: Record, kind: type[A]) -> A:
        """The answer of that kind."""
        answer = self._ask(request, kind)
        assert isinstance(answer, kind)
        return answer


class WrongError(Exception):
    """An output that is not right, or a time that can't be."""

    def __init__(self, error: str, checked: Checked | None = None) -> None:
        super().__init__(error)
        self.checked = checked


class BusyError(Exception):
    """A time that could not be bounded, for others had the cores."""


class Examination:
    """The steps of one point. ``is_audited`` says of a median in microseconds whether it is worth an audit,
    ``waited_us`` how long the worker has waited for a core so far, ``is_known`` that the provider was right
    at this problem in another configuration; ``ended`` is what the provider left in its process."""

    def __init__(
        self,
        judge: Ask,
        worker: Ask,
        on_gpu: bool,
        is_audited: Callable[[float], bool],
        waited_us: Callable[[], float],
        is_known: bool = False,
    ) -> None:
        self.judge = judge
        self.waited_us = waited_us
        self.worker = worker
        self.on_gpu = on_gpu
        self.is_audited = is_audited
        self.is_known = is_known
        self.ended = Ended()
        self._prepared: Prepared | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The files outside of the kernel's folder that were read."""
        by_judge = () if self._prepared is None else self._prepared.read
        return tuple(dict.fromkeys([*by_judge, *self.ended.read]))

    def outcome(self, where: str, point: Point, canary: Canary | None) -> Outcome:
        """What happened at a point of the kernel that ``where`` names. Raises GoneError for a process that
        did not survive it."""
        try:
            self._prepared = prepared = self.judge(Prepare(where=where, point=point), Prepared)
        except FailedError as error:
            return Outcome(status=error.failed.status, error=error.failed.error)
        interpreted = prepared.problem if prepared.problem != point.problem else None
        begin = Begin(
            where=where,
            point=point,
            shared=prepared.shared,
            bytes=prepared.bytes,
            interpreted=prepared.interpreted,
            canary=canary,
        )
        try:
            outcome = self._steps(begin, prepared.edition_s)
            self._end()
        except WrongError as wrong:
            self._end()
            checked = wrong.checked
            outcome = Outcome(
                status="incorrect",
                error=str(wrong),
                max_abs_err=checked and checked.max_abs_err,
                max_rel_err=checked and checked.max_rel_err,
            )
        except FailedError as error:
            if error.failed.healthy:
                self._end()
            outcome = Outcome(status=error.failed.status, error=error.failed.error)
        if outcome.timing is not None and self.ended.replaced:
            names = ", ".join(self.ended.replaced[:3])
            outcome = Outcome(status="incorrect", error=f"replaced {names}, which the timing rests on")
        return outcome.model_copy(update={"interpreted": interpreted, "any_answer": prepared.any_answer})

    def _end(self) -> None:
        try:
            self.ended = self.worker(End(), Ended)
        except FailedError as error:
            self.ended = Ended(changed=(f"it can't say what: {error}",))

    def _steps(self, begin: Begin, edition_s: float) -> Outcome:
        self.judge(Offer(edition=0), Done)
        ran = self._ran(begin, "first call")
        first = self._right(Check(edition=0), "first call")
        errors = {"max_abs_err": first.max_abs_err, "max_rel_err": first.max_rel_err}
        if begin.interpreted or not self.is_known:
            self._try_again(begin, edition_s)
        if begin.interpreted:
            return Outcome(status="verified", launch=ran.launch, tolerance_used=first.used, **errors)
        timed = self.worker(Time(), Timed)
        # Other inputs in the memory of a set that nobody could tell before, through what was timed.
        self.judge(Offer(edition=1), Done)
        self._ran(Again(set=secrets.randbelow(timed.sets)), "after timing")
        self._right(Check(edition=1), "after timing")
        state, audit_us = timed.state, None
        if self.is_audited(timed.timing.median_us):
            try:
                audit_us = self._audit(timed.timing)
            except BusyError as busy:
                state = state.distrusted(str(busy))
        return Outcome(
            status="ok",
            timing=timed.timing,
            state=state,
            launch=ran.launch,
            audit_us=audit_us,
            tolerance_used=first.used,
            **errors,
        )

    def _try_again(self, begin: Begin, edition_s: float) -> None:
        """Call a provider that was right on inputs that nobody could know before, while time is left: to make
        such inputs takes ``edition_s``."""
        started = perf_counter()
        # The second edition is for the call after timing: no earlier call may know it.
        for edition in range(EDITIONS, EDITIONS + MOST_EDITIONS - 1):
            is_needed = begin.interpreted and edition == EDITIONS
            if not is_needed and perf_counter() - started + edition_s > SOON_S[begin.interpreted]:
                break
            self.judge(Offer(edition=edition), Done)
            self._ran(begin.model_copy(update={"again": True}), "on other inputs")
            self._right(Check(edition=edition), "on other inputs")

    def _ran(self, request: Begin | Again, when: str) -> Ran:
        try:
            return self.worker(request, Ran)
        except FailedError as error:
            if error.failed.status == "incorrect":
                raise WrongError(f"{when}: {error.failed.error}") from error
            raise

    def _right(self, request: Check | CheckOne, when: str) -> Checked:
        checked = self.judge(request, Checked)
        if checked.error is not None:
            raise WrongError(f"{when}: {checked.error}", checked)
        return checked

    def _audit(self, timing: Timing) -> float | None:
        """Microseconds that a call takes at most as this process sees it: calls on all sets, each on inputs
        that were written just before. None where a GPU shares no memory.

        Raises WrongError for a timing that is far below what it sees: below the difference to calls on half
        of the sets, in which nothing is that does not grow with their number, or below the whole less what
        messages take, in which all is that one call did for others. Raises BusyError where it saw that only
        while the worker had to wait for its cores.
        """
        half = min(MOST_CALLS, ceil(AUDIT_US / max(timing.median_us, 1e-3)))
        shared = self.judge(Spread(sets=2 * half), Shared)
        if self.on_gpu and shared.region.handle is None:
            return None
        self.worker(Arm(shared=shared), Done)
        half = shared.sets // 2
        limit_us = FACTOR * timing.median_us + SLACK_US.get(timing.timer, SLACK_OF_OTHERS_US)
        whole_us = apart_us = written_us = inf
        was_free = False
        self._microseconds(shared.sets)
        for _ in range(ATTEMPTS):
            waited_us = self.waited_us()
            (_, of_half), (writing_us, of_all) = self._microseconds(half), self._microseconds(shared.sets)
            was_free |= self.waited_us() - waited_us <= BUSY * (of_half + of_all)
            self._right(CheckOne(), "on new inputs")
            whole_us = min(whole_us, of_all)
            # What the judge takes to write a set, it would also take for a call that does nothing.
            written_us = min(written_us, writing_us / shared.sets)
            apart_us = min(apart_us, (of_all - of_half) / half)
            least_us = max(apart_us, (whole_us - MESSAGES_US) / shared.sets) - written_us
            if least_us <= limit_us:
                return whole_us / shared.sets
        seen = f"from outside calls on new inputs took {least_us:.4g} us each"
        if not was_free:
            raise BusyError(f"{seen}, and the machine was too busy to say whether they had to")
        raise WrongError(f"timed at {timing.median_us:.4g} us, but {seen}")

    def _microseconds(self, sets: int) -> tuple[float, float]:
        """How long so many sets were written for, and until their last output was there."""
        self.judge(Draw(sets=sets), Done)
        begin = perf_counter()
        self.judge(Fill(sets=sets), Done)
        written = perf_counter()
        self.worker(Go(sets=sets), Done)
        return (written - begin) * 1e6, (perf_counter() - begin) * 1e6
