"""Measure a point: a worker runs and times the provider, and a verifier verifies its outputs.

This process runs neither. Its clock audits the time that the worker reports.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from ..records.base import Record
from ..records.ceilings import Canary
from ..records.measurement import Outcome, Timing
from ..records.point import Point
from ..records.settings import TimingSettings
from . import audit
from .audit import Kind, Outside, Try
from .child_process import FailedError
from .protocol import (
    EDITIONS,
    Again,
    Arm,
    Begin,
    CallsRead,
    Check,
    Checked,
    Done,
    Draw,
    Empty,
    End,
    Ended,
    Fill,
    Go,
    Inspect,
    Offer,
    Prepare,
    Prepared,
    PrepareWeights,
    Ran,
    Shared,
    Show,
    Spread,
    Time,
    Timed,
)

A = TypeVar("A", bound=Record)

SOON_S = {True: 0.5, False: 0.1}
"""The seconds for calls of a provider on further inputs before it is timed, by whether the provider is
interpreted. An interpreted provider gets at least one further edition, because it is not called after
timing."""

PREPARE_S = 0.3
"""The maximum number of seconds for preparing the weights of all sets in a try of an audit. There are two
sets even if they take longer."""

MOST_EDITIONS = 6
"""The maximum number of editions on which a provider is called before it is timed."""


class Ask:
    """Sends requests to one process. Raises FailedError or GoneError if there is no answer."""

    def __init__(self, ask: Callable[[Record, type[Record]], Record]) -> None:
        self._ask = ask

    def __call__(self, request: Record, kind: type[A]) -> A:
        """Return the answer, of that kind."""
        answer = self._ask(request, kind)
        assert isinstance(answer, kind)
        return answer


class WrongError(Exception):
    """An output is not right, or a time is false."""

    def __init__(self, error: str, checked: Checked | None = None) -> None:
        super().__init__(error)
        self.checked = checked


class FalseTimeError(WrongError):
    """From outside, calls took longer than the time that a worker reported."""


class InconclusiveError(Exception):
    """An audit was disturbed too often to decide."""


class PointAudit:
    """The steps of one point.

    Args:
        settings: the timing's settings.
        is_audited: whether a median in microseconds is worth an audit.
        outside: the supervisor's view of the worker.
        is_known: whether the provider was right at this problem before, perhaps in another configuration.

    ``ended`` has the changes that the provider left in its process, ``audit_s`` the seconds of its audit.
    """

    def __init__(
        self,
        verifier: Ask,
        worker: Ask,
        kind: Kind,
        settings: TimingSettings,
        is_audited: Callable[[float], bool],
        outside: Outside,
        is_known: bool = False,
    ) -> None:
        self.verifier = verifier
        self.worker = worker
        self.kind = kind
        self.settings = settings
        self.is_audited = is_audited
        self.outside = outside
        self.is_known = is_known
        self.ended = Ended()
        self.audit_s = 0.0
        self._prepared: Prepared | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The files outside of the kernel's folder that the point's code has read."""
        by_verifier = () if self._prepared is None else self._prepared.read
        return tuple(dict.fromkeys([*by_verifier, *self.ended.read]))

    def outcome(self, where: str, point: Point, canary: Canary | None) -> Outcome:
        """Measure a point of the kernel that ``where`` names. Raises GoneError if a process dies."""
        try:
            self._prepared = prepared = self.verifier(Prepare(where=where, point=point), Prepared)
        except FailedError as error:
            return Outcome(status=error.failed.status, error=error.failed.error)
        interpreted = prepared.problem if prepared.problem != point.problem else None
        try:
            outcome = self._steps(prepared.begin(where, point, canary), prepared)
            self._end()
        except WrongError as wrong:
            self._end()
            checked = wrong.checked
            outcome = Outcome(
                status="incorrect",
                error=str(wrong),
                max_abs_err=None if checked is None else checked.max_abs_err,
                max_rel_err=None if checked is None else checked.max_rel_err,
            )
        except FailedError as error:
            if error.failed.healthy:
                self._end()
            outcome = Outcome(status=error.failed.status, error=error.failed.error)
        if outcome.timing is not None and self.ended.replaced:
            names = ", ".join(self.ended.replaced[:3])
            outcome = Outcome(status="incorrect", error=f"replaced {names}, which the timing rests on")
        return outcome.replace(interpreted=interpreted, any_answer=prepared.any_answer)

    def _end(self) -> None:
        try:
            self.ended = self.worker(End(), Ended)
        except FailedError as error:
            self.ended = Ended(changed=(f"it can't say what: {error}",))

    def _steps(self, begin: Begin, prepared: Prepared) -> Outcome:
        self.verifier(Offer(edition=0), Done)
        ran = self._ran(begin, "first call")
        first = self._right(Check(edition=0), "first call")
        errors: dict[str, Any] = {"max_abs_err": first.max_abs_err, "max_rel_err": first.max_rel_err}
        for call in range(2, prepared.draws + 1):
            self.verifier(Offer(edition=0), Done)
            self._ran(begin.replace(again=True), f"call {call}")
            self._right(Check(edition=0, calls=call), f"call {call}")
        if begin.interpreted or not self.is_known:
            self._try_again(begin, prepared.edition_s)
        if begin.interpreted:
            return Outcome(status="verified", launch=ran.launch, tolerance_used=first.used, **errors)
        timed, ratio = self._timed(begin, prepared)
        more = CallsRead() if prepared.more is None else self.worker(prepared.more, CallsRead)
        return Outcome(
            status="ok",
            timing=timed.timing,
            state=timed.state,
            launch=ran.launch,
            audit_ratio=ratio,
            prepare_ms=timed.prepare_ms,
            peak_mib=more.peak_mib,
            host_us=more.host_us,
            tolerance_used=first.used,
            **errors,
        )

    def _timed(
        self, begin: Begin, prepared: Prepared, large_ring: bool = False
    ) -> tuple[Timed, float | None]:
        """Time the provider, verify the timed calls, and audit the time. Returns the audit's ratio, too.

        A GPU's time that the audit refuses is measured again over a large ring: a provider that loads with
        ``evict_first`` or ``evict_last`` finds part of the usual ring in the cache, and skips no work.
        """
        timed = self.worker(Time(large_ring=large_ring), Timed)
        # Repeat the timed call on other inputs in a set that the provider can't predict.
        again = Again(set=secrets.randbelow(timed.sets))
        for call in (1, 2) if prepared.draws else (1,):
            self.verifier(Offer(edition=1), Done)
            self._ran(again, "after timing")
            self._right(Check(edition=1, calls=call), "after timing")
        if not large_ring and not self.is_audited(timed.timing.median_us):
            return timed, None
        started = self.outside.clock()
        ratio, why, is_false = None, "", False
        try:
            ratio = self._audit(timed.timing, timed.prepare_ms)
        except InconclusiveError as inconclusive:
            why = str(inconclusive)
        except FalseTimeError:
            if large_ring or self.settings.cache == "hot" or timed.timing.timer != "graph":
                raise
            is_false = True
        except FailedError as error:
            if error.failed.status != "out_of_memory":
                raise
            why = "there is no memory for its sets"
        finally:
            self.audit_s += self.outside.clock() - started
        if is_false:
            # The audit's sets took the place of the inputs and outputs in shared memory.
            self.verifier(Prepare(where=begin.where, point=begin.point), Prepared)
            return self._timed(begin, prepared, large_ring=True)
        if why:
            timed = timed.replace(state=timed.state.distrusted(f"not audited: {why}"))
        return timed, ratio

    def _try_again(self, begin: Begin, edition_s: float) -> None:
        """While time is left, call a right provider on further inputs, which it can't have known in advance.

        Making such inputs takes ``edition_s`` seconds.
        """
        started = perf_counter()
        # The second edition is for the call after timing: no earlier call may know it.
        for edition in range(EDITIONS, EDITIONS + MOST_EDITIONS - 1):
            is_needed = begin.interpreted and edition == EDITIONS
            if not is_needed and perf_counter() - started + edition_s > SOON_S[begin.interpreted]:
                break
            self.verifier(Offer(edition=edition), Done)
            self._ran(begin.replace(again=True), "on other inputs")
            self._right(Check(edition=edition), "on other inputs")

    def _ran(self, request: Begin | Again, when: str) -> Ran:
        try:
            return self.worker(request, Ran)
        except FailedError as error:
            if error.failed.status == "incorrect":
                raise WrongError(f"{when}: {error.failed.error}") from error
            raise

    def _right(self, request: Check | Inspect, when: str) -> Checked:
        checked = self.verifier(request, Checked)
        if checked.error is not None:
            raise WrongError(f"{when}: {checked.error}", checked)
        return checked

    def _audit(self, timing: Timing, prepare_ms: float | None) -> float | None:
        """Audit a timing by calls on inputs that are used once.

        Returns the ratio of a call's time by this process's clock to the timing; None if a GPU can't share
        memory. With a hot cache the calls are timed here again with a cold cache, and that time is audited.
        ``prepare_ms`` is the time to prepare a set's weights, which limits the number of sets.

        Raises WrongError for wrong outputs and for a false timing, and InconclusiveError where other programs
        disturbed the audit too often.
        """
        if self.settings.cache == "hot":
            timing = self.worker(Time(cache="cold"), Timed).timing
        sets = audit.calls_for(timing.median_us)
        if prepare_ms:
            sets = min(sets, int(PREPARE_S * 1e3 / prepare_ms))
        shared = self.verifier(Spread(sets=sets), Shared)
        if self.kind == "cuda" and shared.region.handle is None:
            return None
        self.verifier(Draw(), Done)
        self.verifier(Fill(), Done)
        self.worker(Arm(shared=shared), Done)
        by_host = self.kind == "cuda" and timing.timer != "graph"
        for series in range(audit.SERIES):
            if series:
                self.outside.rest(audit.REST_S)
            tries = audit.Tries(timing.median_us, audit.RULES[self.kind], by_host)
            self.worker(Go(), Done)  # the first replay uploads a graph, the first touch of memory maps it
            while not tries.is_over:
                tries.add(self._try(shared))
            if not tries.is_false:
                break
        if tries.is_false:
            cold = "" if self.settings.cache == "cold" else " with a cold cache"
            raise FalseTimeError(
                f"timed at {timing.median_us:.4g} us{cold}, but from outside calls on new inputs took "
                f"{tries.us:.4g} us each"
            )
        if not tries.is_true:
            raise InconclusiveError(f"{tries.disturbed} in {len(tries.all)} tries")
        return tries.ratio

    def _try(self, shared: Shared) -> Try:
        """Make one try: the span from Go to Done over new inputs in all sets.

        The inputs are made where the worker can't see them, and then written at once. The outputs of some
        sets are compared.
        """
        begin = self.outside.clock()
        # A provider can lengthen the worker's empty replay to hide its own time, but not the verifier's.
        empty_us = min(self._span_us(self.worker, Empty()), self._span_us(self.verifier, Empty()))
        self.verifier(Draw(), Done)
        weights = () if self._prepared is None else self._prepared.weights
        others = tuple(place for place in range(len(shared.inputs)) if place not in weights)
        if weights:
            # Prepared before the other inputs are there: no answer can be computed with the weights.
            self.verifier(Fill(places=weights), Done)
            self.worker(PrepareWeights(), Done)
        asleep = self.outside.look()
        self.verifier(Fill(places=others), Done)
        before = self.outside.look()
        span_us = self._span_us(self.worker, Go())
        disturbed = audit.disturbance(before, self.outside.look(), self.outside.cores)
        shown = tuple(secrets.randbelow(shared.sets) for _ in range(min(audit.SHOWN, shared.shown)))
        self.worker(Show(sets=shown), Done)
        self._right(Inspect(sets=shown), "on new inputs")
        if self.kind == "cpu":
            # The provider may have computed in a thread while the inputs were written.
            span_us += audit.ahead_us(asleep, before)
        took_us = (self.outside.clock() - begin) * 1e6
        return Try(span_us, empty_us, shared.sets, disturbed, took_us)

    def _span_us(self, ask: Ask, request: Empty | Go) -> float:
        begin = self.outside.clock()
        ask(request, Done)
        return (self.outside.clock() - begin) * 1e6
