"""How points are timed: what conf/timing holds, and a part of every measurement's key."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from .base import Record

TimerChoice = Literal["auto", "graph", "event", "do_bench", "wall"]
"""Timers that a sweep may take."""

TIMERS: tuple[TimerChoice, ...] = get_args(TimerChoice)


class TimingSettings(Record):
    """Settings of a timing.

    timer:
        ``auto`` is ``graph`` on a GPU and the host clock on a CPU, which has no other.
    stopping:
        ``confidence`` stops once the median's 95 % interval is ``target_rel_ci`` narrow and there are
        ``min_samples``, or after ``max_seconds`` of sampling; ``count`` stops at ``min_samples``; ``budget``
        after ``max_seconds``.
    """

    timer: TimerChoice = "auto"
    cache: Literal["cold", "hot"] = "cold"
    stopping: Literal["confidence", "count", "budget"] = "confidence"
    target_rel_ci: Annotated[float, Meta(gt=0, lt=1)] = 0.005
    min_samples: Annotated[int, Meta(ge=3)] = 20
    max_seconds: Annotated[float, Meta(gt=0)] = 0.1
