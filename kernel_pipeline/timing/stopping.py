"""When to stop sampling: one criterion a file, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..statistics.quantiles import relative_half_width


class Stopping(Protocol):
    """Asked after every batch of samples."""

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the samples so far are enough, ``elapsed_s`` seconds after the first was begun."""


class Either:
    """Stops as soon as one of its criteria does."""

    def __init__(self, *criteria: Stopping) -> None:
        self.criteria = criteria

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether any criterion is met."""
        return any(criterion.done(samples_us, elapsed_s) for criterion in self.criteria)


@dataclass(frozen=True)
class Budget:
    """Met after ``seconds`` of sampling, but never before three samples: fewer have no median."""

    seconds: float

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the time is spent."""
        return len(samples_us) >= 3 and elapsed_s >= self.seconds


@dataclass(frozen=True)
class Confidence:
    """Met when the half-width of the median's 95 % interval is under ``target`` of the median, with at
    least ``min_samples`` samples."""

    target: float
    min_samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the median's interval is narrow enough."""
        return len(samples_us) >= self.min_samples and relative_half_width(samples_us) <= self.target


@dataclass(frozen=True)
class Count:
    """Met at ``samples`` samples."""

    samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether there are enough samples."""
        return len(samples_us) >= self.samples
