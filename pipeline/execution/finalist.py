"""What finals ask of a point beside its time: how right it is, and how fast it stays."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.execution.examination import Ask
from pipeline.execution.partner import FailedError
from pipeline.execution.protocol import (
    Appraise,
    Appraised,
    Begin,
    Done,
    End,
    Ended,
    Offer,
    Prepare,
    Prepared,
    Ran,
    Repeat,
    Repeated,
    Sustain,
)
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary
from pipeline.store.turns import Accuracy, Sustained


@dataclass(frozen=True)
class Extra:
    """What was found; None for what was not asked, and for a call that no graph can hold."""

    accuracy: Accuracy | None = None
    sustained: Sustained | None = None


def ask(
    judge: Ask, worker: Ask, where: str, point: Point, canary: Canary | None, seconds: float | None
) -> tuple[Extra, Ended]:
    """Call a provider that was found right twice on the same inputs, and with ``seconds`` time it after that
    much of the same work; with what it left in its process. Raises GoneError for a process that did not
    survive it."""
    try:
        prepared = judge(Prepare(where=where, point=point), Prepared)
        begin = Begin(
            where=where,
            point=point,
            shared=prepared.shared,
            bytes=prepared.bytes,
            interpreted=prepared.interpreted,
            canary=canary,
        )
        judge(Offer(edition=0), Done)
        worker(begin, Ran)
        appraised = judge(Appraise(edition=0), Appraised)
        judge(Offer(edition=0), Done)
        worker(begin, Ran)
        repeats = judge(Repeat(), Repeated).same
        accuracy = Accuracy(ulp_median=appraised.ulp_median, ulp_worst=appraised.ulp_worst, repeats=repeats)
        sustained = None if seconds is None else worker(Sustain(seconds=seconds), Sustained)
        ended = worker(End(), Ended)
    except FailedError as error:
        # Nothing was found, and what it left behind is not known.
        return Extra(), Ended(changed=(str(error),))
    return Extra(accuracy, sustained), ended
