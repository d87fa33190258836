"""Verify a provider's answers without timing it."""

from __future__ import annotations

from ..records.measurement import Outcome
from ..records.point import Point
from .audit import Outside
from .point_audit import Ask, PointAudit
from .protocol import EDITIONS, Begin, Check, Checked, Done, Offer, Prepared, Ran
from .supervisor import Supervisor

KNOWN, OTHER = 0, EDITIONS
"""The edition that is the same in every run, and one of a seed that nobody knows."""


class AnswerAudit(PointAudit):
    """The steps of a point whose answers are verified for these editions, and which is not timed."""

    editions: tuple[int, ...] = (KNOWN, OTHER)

    def _steps(self, begin: Begin, prepared: Prepared) -> Outcome:
        first, ran = Checked(error=None, max_abs_err=0.0, max_rel_err=0.0), Ran()
        for number, edition in enumerate(self.editions):
            when = "on other inputs" if number else "first call"
            self.verifier(Offer(edition=edition), Done)
            ran = self._ran(begin.replace(again=number > 0), when)
            found = self._right(Check(edition=edition), when)
            first = first if number else found
        return Outcome(
            status="verified",
            launch=ran.launch,
            max_abs_err=first.max_abs_err,
            max_rel_err=first.max_rel_err,
            tolerance_used=first.used,
        )


class AnswerSupervisor(Supervisor):
    """A supervisor that can also verify a provider's answers alone, which takes a tenth of the work."""

    _editions: tuple[int, ...] = ()

    def answers(self, where: str, point: Point) -> Outcome:
        """Verify a provider's answers to known inputs and to others."""
        return self._verified((KNOWN, OTHER), where, point)

    def first_answer(self, where: str, point: Point) -> Outcome:
        """Verify the first answer of a provider in a fresh process, to inputs that nobody knows."""
        if self._workers.is_running:
            self._let_go(self._workers.now)
            self._workers.now.close()
        return self._verified((OTHER,), where, point)

    def _verified(self, editions: tuple[int, ...], where: str, point: Point) -> Outcome:
        self._editions = editions
        try:
            return self.measure(where, point)
        finally:
            self._editions = ()

    def _examined(self, where: str, point: Point, is_audited: bool) -> Outcome:
        if not self._editions:
            return super()._examined(where, point, is_audited)
        self._turn_to((where, point.provider))
        audit = AnswerAudit(
            Ask(self._ask_verifier),
            Ask(self._ask_worker),
            self.device.kind,
            self._settings,
            lambda median_us: False,
            Outside(self._look, cores=1),
        )
        audit.editions = self._editions
        outcome = audit.outcome(where, point, self.canary)
        self._replace_changed(point, audit.ended)
        return outcome
