"""Extra readings of a provider for finals and comparisons of timers: its accuracy, its time after seconds of
work, and its times by several timers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..records.ceilings import Canary
from ..records.measurement import Accuracy, Sustained
from ..records.point import Point
from .child_process import FailedError
from .point_audit import Ask
from .protocol import (
    AccuracyMeasured,
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


@dataclass(frozen=True)
class Extra:
    """The extra readings of finals. A field is None if it was not requested or the readings failed."""

    accuracy: Accuracy | None = None
    sustained: Sustained | None = None


def ask(
    verifier: Ask, worker: Ask, where: str, point: Point, canary: Canary | None, seconds: float | None
) -> tuple[Extra, Ended]:
    """Call a verified provider twice on the same inputs. Find its accuracy and whether it repeats its output.

    With ``seconds`` also time it after that many seconds of its calls. Returns the readings and the changes
    that the provider left in its process. Raises GoneError if a process dies.
    """
    accuracy = None
    try:
        prepared = verifier(Prepare(where=where, point=point), Prepared)
        begin = prepared.begin(where, point, canary)
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
        # The changes that the provider left are not known, so its worker has to be replaced.
        return Extra(accuracy), Ended(changed=(str(error),))
    return Extra(accuracy, sustained), ended


@dataclass
class Readings:
    """The readings of a comparison of timers.

    ``timed`` has the timings by timer, in the order of the turns. ``stamped`` has CUPTI's times, or None if
    they were not requested. ``error`` says why readings are missing.
    """

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
    """Verify a provider, and time it by each timer in turn, ``repeats`` times.

    With ``is_stamped`` also read CUPTI's times at the end. Returns the readings and the changes that the
    provider left in its process. Raises GoneError if a process dies.
    """
    found = Readings()
    try:
        prepared = verifier(Prepare(where=where, point=point), Prepared)
        verifier(Offer(edition=0), Done)
        worker(prepared.begin(where, point, canary), Ran)
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
        # The changes that the provider left are not known, so its worker has to be replaced.
        return found, Ended(changed=(str(error),))
    return found, ended
