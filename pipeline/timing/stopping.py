"""When to stop sampling: one criterion a file, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


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
