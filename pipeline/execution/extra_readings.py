"""What finals and comparisons of timers ask of a provider beside a row: its accuracy, its time after
seconds of work, and times by several timers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_pipeline.records.ceilings import Canary
from kernel_pipeline.records.point import Point
from pipeline.execution.child_process import FailedError
from pipeline.execution.point_audit import Ask
from pipeline.execution.protocol import (
    AccuracyMeasured,
    Begin,
    Check,
    Checked,
    Done,
    End,
    Ended,
    MeasureAccuracy,
    Offer,
    Prepare,
    Prepared,
    Ran,
    Repeat,
    Repeated,
    Stamp,
    Stamped,
    Sustain,
    Time,
    Timed,
    TimerName,
)
from pipeline.store.turns import Accuracy, Sustained


@dataclass(frozen=True)
class Extra:
    """What was found; None for what was not asked, and for a call that no graph can hold."""

    accuracy: Accuracy | None = None
    sustained: Sustained | None = None


def ask(
    verifier: Ask, worker: Ask, where: str, point: Point, canary: Canary | None, seconds: float | None
) -> tuple[Extra, Ended]:
    """Call a provider that was found right twice on the same inputs, and with ``seconds`` time it after that
    much of the same work; with what it left in its process. Raises GoneError for a process that did not
    survive it."""
    try:
        prepared = verifier(Prepare(where=where, point=point), Prepared)
        begin = Begin(
            where=where,
            point=point,
            shared=prepared.shared,
            bytes=prepared.bytes,
            interpreted=prepared.interpreted,
            canary=canary,
        )
        verifier(Offer(edition=0), Done)
        worker(begin, Ran)
        appraised = verifier(MeasureAccuracy(edition=0), AccuracyMeasured)
        verifier(Offer(edition=0), Done)
        worker(begin, Ran)
        repeats = verifier(Repeat(), Repeated).same
        accuracy = Accuracy(ulp_median=appraised.ulp_median, ulp_worst=appraised.ulp_worst, repeats=repeats)
        sustained = None if seconds is None else worker(Sustain(seconds=seconds), Sustained)
        ended = worker(End(), Ended)
    except FailedError as error:
        # Nothing was found, and what it left behind is not known.
        return Extra(), Ended(changed=(str(error),))
    return Extra(accuracy, sustained), ended


@dataclass
class Readings:
    """What was read: timings by timer, in turn; CUPTI's stamps, None where they were not asked for; and why
    there are none, in place of all."""

    timed: dict[TimerName, list[Timed]] = field(default_factory=dict)
    stamped: Stamped | None = None
    error: str | None = None


def read(
    verifier: Ask,
    worker: Ask,
    where: str,
    point: Point,
    canary: Canary | None,
    timers: Sequence[TimerName],
    repeats: int,
    is_stamped: bool,
) -> tuple[Readings, Ended]:
    """Verify a provider, time it by each timer in turn, ``repeats`` times, and with ``is_stamped`` read CUPTI
    at the end; with what it left in its process. Raises GoneError for a process that did not survive it."""
    found = Readings()
    try:
        prepared = verifier(Prepare(where=where, point=point), Prepared)
        verifier(Offer(edition=0), Done)
        begin = Begin(
            where=where,
            point=point,
            shared=prepared.shared,
            bytes=prepared.bytes,
            interpreted=prepared.interpreted,
            canary=canary,
        )
        worker(begin, Ran)
        found.error = verifier(Check(edition=0), Checked).error
        if found.error is None and prepared.interpreted:
            found.error = "an interpreter runs it here, which has no time"
        if found.error is None:
            for _ in range(repeats):
                for timer in timers:
                    found.timed.setdefault(timer, []).append(worker(Time(timer=timer), Timed))
            if is_stamped and worker(Time(timer="graph"), Timed).timing.timer == "graph":
                found.stamped = worker(Stamp(), Stamped)
        ended = worker(End(), Ended)
    except FailedError as error:
        found.error = str(error)
        # What it left behind is not known.
        return found, Ended(changed=(str(error),))
    return found, ended
