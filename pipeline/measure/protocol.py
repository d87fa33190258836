"""What a supervisor and its worker say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.measure.record import Outcome
from pipeline.measure.settings import TimingSettings


@dataclass(frozen=True)
class Setup:
    """The first message to a worker."""

    device: str
    settings: TimingSettings
    seed: int


@dataclass(frozen=True)
class Reply:
    """The answer to a point. A worker that is not ``healthy`` (a GPU fault spoils its process) ends
    itself after this reply."""

    outcome: Outcome
    healthy: bool


@dataclass(frozen=True)
class MeasureCeilings:
    """Asks for the device's ceilings: answered with (copy GB/s, matmul TFLOP/s by dtype)."""
