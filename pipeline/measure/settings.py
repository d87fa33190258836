"""How points are timed: what conf/timing holds, and a part of every measurement's key."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.measure.record import Record


class TimingSettings(Record):
    """Settings of a timing. ``max_seconds`` bounds the sampling of one point; ``target_rel_ci`` ends it
    earlier once the median's 95 % interval is that narrow and there are ``min_samples`` samples."""

    cache: Literal["cold", "hot"]
    min_samples: int = Field(ge=2)
    max_seconds: float = Field(gt=0)
    target_rel_ci: float = Field(gt=0, lt=1)
