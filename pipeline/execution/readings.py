"""Times of one point by several timers, and what CUPTI stamps of the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.execution.examination import Ask
from pipeline.execution.partner import FailedError
from pipeline.execution.protocol import (
    Begin,
    Check,
    Checked,
    Done,
    End,
    Ended,
    Offer,
    Prepare,
    Prepared,
    Ran,
    Stamp,
    Stamped,
    Time,
    Timed,
    TimerName,
)
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary


@dataclass
class Readings:
    """What was read: timings by timer, in turn; CUPTI's stamps, None where they were not asked for; and why
    there are none, in place of all."""

    timed: dict[TimerName, list[Timed]] = field(default_factory=dict)
    stamped: Stamped | None = None
    error: str | None = None


def read(
    judge: Ask,
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
        prepared = judge(Prepare(where=where, point=point), Prepared)
        judge(Offer(edition=0), Done)
        begin = Begin(
            where=where,
            point=point,
            shared=prepared.shared,
            bytes=prepared.bytes,
            interpreted=prepared.interpreted,
            canary=canary,
        )
        worker(begin, Ran)
        found.error = judge(Check(edition=0), Checked).error
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
