"""Stopping criteria for sampling, with a common interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..statistics.quantiles import relative_half_width


class Stopping(Protocol):
    """A stopping criterion; it is checked after every batch of samples."""

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the samples are enough, ``elapsed_s`` seconds after sampling began."""


class Either:
    """Met as soon as one of its criteria is met."""

    def __init__(self, *criteria: Stopping) -> None:
        self.criteria = criteria

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether any criterion is met."""
        return any(criterion.done(samples_us, elapsed_s) for criterion in self.criteria)


@dataclass(frozen=True)
class Budget:
    """Met after ``seconds`` of sampling, but not before there are three samples for a median."""

    seconds: float

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the time is spent."""
        return len(samples_us) >= 3 and elapsed_s >= self.seconds


@dataclass(frozen=True)
class Confidence:
    """Met when there are at least ``min_samples`` samples, and the half-width of the median's 95 % interval
    is at most ``target`` times the median."""

    target: float
    min_samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether the median's interval is narrow enough."""
        return len(samples_us) >= self.min_samples and relative_half_width(samples_us) <= self.target


@dataclass(frozen=True)
class Count:
    """Met when there are ``samples`` samples."""

    samples: int

    def done(self, samples_us: Sequence[float], elapsed_s: float) -> bool:
        """Whether there are enough samples."""
        return len(samples_us) >= self.samples
