"""The timing settings of conf/timing, which are part of every measurement's key."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from .base import Record

TimerChoice = Literal["auto", "graph", "event", "do_bench", "wall"]
"""The timers that a sweep may use."""

TIMERS: tuple[TimerChoice, ...] = get_args(TimerChoice)


class TimingSettings(Record):
    """Settings of a timing.

    timer:
        ``auto`` is ``graph`` on a GPU. A CPU is always timed by the host clock.
    cache:
        Whether a call finds its inputs in the cache.
    stopping:
        ``confidence`` stops when there are ``min_samples`` and the relative half-width of the median's 95 %
        interval is at most ``target_rel_ci``, or after ``max_seconds`` of sampling. ``count`` stops at
        ``min_samples``. ``budget`` stops after ``max_seconds``.
    """

    timer: TimerChoice = "auto"
    cache: Literal["cold", "hot"] = "cold"
    stopping: Literal["confidence", "count", "budget"] = "confidence"
    target_rel_ci: Annotated[float, Meta(gt=0, lt=1)] = 0.005
    min_samples: Annotated[int, Meta(ge=3)] = 20
    max_seconds: Annotated[float, Meta(gt=0)] = 0.1
