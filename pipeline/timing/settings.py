"""How points are timed: what conf/timing holds, and a part of every measurement's key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.points.frozen import Record


class TimingSettings(Record):
    """Settings of a timing.

    timer:
        ``auto`` is ``graph`` on a GPU and the host clock on a CPU, which has no other.
    stopping:
        ``confidence`` stops once the median's 95 % interval is ``target_rel_ci`` narrow and there are
        ``min_samples``, or after ``max_seconds`` of sampling; ``count`` stops at ``min_samples``; ``budget``
        after ``max_seconds``.
    """

    timer: Literal["auto", "graph", "event", "do_bench", "wall"] = "auto"
    cache: Literal["cold", "hot"] = "cold"
    stopping: Literal["confidence", "count", "budget"] = "confidence"
    target_rel_ci: float = Field(default=0.005, gt=0, lt=1)
    min_samples: int = Field(default=20, ge=3)
    max_seconds: float = Field(default=0.1, gt=0)
