"""The options that commands share: those of the groups of conf/ (a preset, the timing, the tracking), and a
kernel's points."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from kernel_pipeline.records.settings import TimerChoice, TimingSettings

from ..points import catalog
from ..points.catalog import Entry, Options
from ..points.choice import EVERY, LARGEST
from .values import Pin, Place, Seed, Sets, Some

FEWEST_ROUNDS = 2
"""The minimum number of rounds: the ratio of a single round has no spread."""


class PresetConfig(Options):
    """The options of conf/preset/NAME.yaml: how much to measure. ``auto`` names the preset for each kind of
    device.

    Finals have ``rounds``, and up to ``most_rounds`` while undecided. Sweeps measure every problem. Finals,
    profiles, counters and codegen take the problems of ``closer``: all chosen problems, or the largest.
    Finals and profiles take the baseline, and providers within ``near`` times the fastest of their kind (own
    or others'); None takes all. In ``lasting`` rounds of finals, long kernels are also timed after seconds of
    work. ``sets`` are the sets of ncu.
    """

    name: str
    rounds: int = Field(default=FEWEST_ROUNDS, ge=FEWEST_ROUNDS)
    most_rounds: int = Field(default=FEWEST_ROUNDS, ge=FEWEST_ROUNDS)
    closer: Literal["all", "largest"] = "all"
    near: float | None = Field(default=None, ge=1)
    lasting: int = Field(default=FEWEST_ROUNDS, ge=0)
    sets: Sets = ("full",)
    min_samples: int = Field(default=50, ge=2)
    max_seconds: float = Field(default=1.0, gt=0)
    cpu: str | None = None
    cuda: str | None = None

    @property
    def few(self) -> slice:
        """Which of the smallest, the middle and the largest problem ``closer`` takes."""
        return LARGEST if self.closer == "largest" else EVERY


class TimingConfig(Options):
    """The options of conf/timing/NAME.yaml: ``TimingSettings`` as options."""

    timer: TimerChoice = "auto"
    cache: Literal["cold", "hot"] = "cold"
    stopping: Literal["confidence", "count", "budget"] = "confidence"
    target_rel_ci: float = Field(default=0.005, gt=0, lt=1)
    min_samples: int = Field(default=20, ge=3)
    max_seconds: float = Field(default=0.1, gt=0)

    @property
    def settings(self) -> TimingSettings:
        """The settings as the measuring code takes them."""
        return TimingSettings(**self.model_dump())


class TrackingConfig(Options):
    """The options of conf/tracking/NAME.yaml: the MLflow store. ``uri`` null means MLFLOW_TRACKING_URI if it
    is set, else the repository's SQLite file, or with ``server`` this machine's server. The address may hold
    a password, so no kept or printed configuration contains it."""

    name: Literal["local", "server", "none"]
    uri: str | None = Field(repr=False, exclude=True)

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.uri == "":
            raise ValueError("uri is empty; write tracking.uri=ADDRESS, or leave it out")
        if self.name == "none" and self.uri is not None:
            raise ValueError("none publishes nothing, so uri has no use; leave out one of them")
        return self


class KernelOptions(Options):
    """The options of a command about one kernel: its name, or the folder of a kernel outside of the
    repository."""

    kernel: str

    @property
    def entry(self) -> Entry:
        """The kernel and its YAML. Raises UserError if they are missing or can't be read."""
        return catalog.find(self.kernel)


class PointsConfig(KernelOptions):
    """The points of a kernel, and the settings in their keys. ``pin`` holds values of the kernel's dimensions
    and of its providers' parameters, which replace the YAML's values."""

    preset: PresetConfig
    timing: TimingConfig
    provider: Pin[str]
    pin: dict[str, Some] = Field(default_factory=dict)
    output: Place
    seed: Seed
