"""What a supervisor and its worker say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.point import Point
from pipeline.measure.ceiling import Overhead
from pipeline.measure.record import Outcome
from pipeline.measure.settings import TimingSettings


@dataclass(frozen=True)
class Setup:
    """The first message to a worker."""

    device: str
    settings: TimingSettings
    seed: int


@dataclass(frozen=True)
class Ready:
    """A worker's first message: it has started and answers requests from now on."""


@dataclass(frozen=True)
class Reply:
    """The answer to a point. A worker that is not ``healthy`` (a GPU fault spoils its process) ends
    itself after this reply."""

    outcome: Outcome
    healthy: bool


@dataclass(frozen=True)
class Measure:
    """Asks for the outcome at a point: answered with a Reply. ``overhead`` is for the graph timer."""

    point: Point
    overhead: Overhead


@dataclass(frozen=True)
class MeasureRates:
    """Asks for the device's own rates: answered with Rates."""


@dataclass(frozen=True)
class Rates:
    """A copy's GB/s, a matrix product's TFLOP/s by dtype, and what a launch costs."""

    copy_gbps: float
    matmul_tflops: dict[str, float]
    overhead: Overhead
