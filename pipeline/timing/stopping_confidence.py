"""Stop once the median is known well enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.timing.statistics import relative_half_width


@dataclass(frozen=True)
class Confidence:
    """Met when the half-width of the median's 95 % interval is under ``target`` of the median, with at
    least ``min_samples`` samples."""

    target: float
    min_samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the median's interval is narrow enough."""
        return len(samples_us) >= self.min_samples and relative_half_width(samples_us) <= self.target
