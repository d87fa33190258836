"""Stop when the time is spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """Met after ``seconds`` of sampling, but never before three samples: fewer have no median."""

    seconds: float

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the time is spent."""
        return len(samples_us) >= 3 and elapsed_s >= self.seconds
