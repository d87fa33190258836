"""Stop at a fixed number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """Met at ``samples`` samples."""

    samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether there are enough samples."""
        return len(samples_us) >= self.samples
