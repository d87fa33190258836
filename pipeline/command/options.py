"""What each command line takes: a schema a file of conf/, checked before anything runs."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from omegaconf import ListConfig
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kernels.contract import Value
from pipeline import unknown
from pipeline.inspection.ncu import SETS
from pipeline.inspection.occupancy import LIMITS
from pipeline.inspection.sanitizer import TOOLS
from pipeline.points import catalog
from pipeline.points.catalog import Entry
from pipeline.points.choice import EVERY, LARGEST
from pipeline.points.frozen import Record
from pipeline.store.retry import Retry
from pipeline.timing.settings import TimingSettings

FEWEST_ROUNDS = 2
"""One round's ratio says nothing of how much ratios differ."""


def as_list(value: Any) -> Any:
    """A single value as a list of it."""
    return value if value is None or isinstance(value, (list, tuple, ListConfig)) else [value]


def _not_empty(value: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    if value == ():
        raise ValueError("is empty; write a value or a list of values")
    return value


def _architecture(value: Any) -> str:
    """``90`` for what people write: 90, sm_90, 9.0."""
    name = str(value).removeprefix("sm_").replace(".", "")
    if name not in LIMITS:
        raise ValueError(str(unknown("architecture", str(value), LIMITS)))
    return name


Architecture = Annotated[str, BeforeValidator(_architecture)]
T = TypeVar("T")
Pin = Annotated[tuple[T, ...] | None, BeforeValidator(as_list), AfterValidator(_not_empty)]
"""An option that takes one value, a list, or null for the kernel's own."""

Some = Annotated[tuple[Value, ...], BeforeValidator(as_list), AfterValidator(_not_empty)]


@dataclass(frozen=True)
class AsWritten:
    """Marks an option whose text is taken as it is written, with blanks, commas and brackets."""


class PresetConfig(Record):
    """conf/preset/NAME.yaml: how much to measure. ``auto`` names the preset for each kind of device.

    Finals have ``rounds``, and ``most_rounds`` where they are still undecided. Sweeps measure every problem;
    finals, profiles, counters and codegen look ``closer``: at all that they would choose, or at the largest.
    """

    name: str
    rounds: int = Field(default=FEWEST_ROUNDS, ge=FEWEST_ROUNDS)
    most_rounds: int = Field(default=FEWEST_ROUNDS, ge=FEWEST_ROUNDS)
    closer: Literal["all", "largest"] = "all"
    min_samples: int = Field(default=50, ge=2)
    max_seconds: float = Field(default=1.0, gt=0)
    cpu: str | None = None
    cuda: str | None = None

    @property
    def few(self) -> slice:
        """Which of the smallest, the middle and the largest problem is looked at more closely."""
        return LARGEST if self.closer == "largest" else EVERY


class TrackingConfig(Record):
    """conf/tracking/NAME.yaml: the MLflow store. ``uri`` null is what MLFLOW_TRACKING_URI names, else the
    repository's own SQLite file, or with ``server`` the one on this machine. It may hold a password, so that
    nothing that is kept or shown of a configuration has it."""

    name: Literal["local", "server", "none"]
    uri: str | None = Field(repr=False, exclude=True)

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.uri == "":
            raise ValueError("uri is empty; write tracking.uri=ADDRESS, or leave it out")
        if self.name == "none" and self.uri is not None:
            raise ValueError("none publishes nothing, and uri says where; leave out one of them")
        return self


class KernelOptions(Record):
    """A command about one kernel: its name, or the folder of one outside of the repository."""

    kernel: str

    @property
    def entry(self) -> Entry:
        """The kernel and its YAML. Raises UserError where they are missing or can't be read."""
        return catalog.find(self.kernel)


class PointsConfig(KernelOptions):
    """Which points of a kernel, and all else that their keys depend on. ``pin`` holds values of the kernel's
    own dimensions and its providers' parameters, in place of the YAML's."""

    preset: PresetConfig
    timing: TimingSettings
    provider: Pin[str]
    pin: dict[str, Some] = Field(default_factory=dict)
    output: Path
    seed: int


class SweepConfig(PointsConfig):
    """conf/sweep.yaml."""

    tracking: TrackingConfig = Field(exclude=True)
    device: Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_not_empty)]
    remeasure: bool
    retry: Retry
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class CodegenConfig(PointsConfig):
    """conf/codegen.yaml. ``architectures`` None is the GPU's own, or Hopper's without one."""

    device: str
    architectures: Pin[Architecture]
    show: Literal["ptx", "sass"]
    function: str | None
    a: str | None
    b: str | None
    artifacts: Path
    wait_s: float | None = Field(ge=0)


class ProfileConfig(PointsConfig):
    """conf/profile.yaml. Problems that are not pinned are three of the preset's first workload."""

    device: str
    stacks: bool
    tensorboard: Path | None
    artifacts: Path
    wait_s: float | None = Field(ge=0)


def _sets(value: tuple[str, ...]) -> tuple[str, ...]:
    named = [name for name in value if name in SETS]
    if named and len(value) > 1:
        raise ValueError(f"'{named[0]}' is a whole set; write it alone, or a list of sections and metrics")
    for name in value:
        # A section's name may be anything; one that is nearly a set's is a slip.
        if name not in SETS and difflib.get_close_matches(name.lower(), SETS, n=1, cutoff=0.7):
            raise ValueError(str(unknown("set", name, SETS)))
    return value


class CountersConfig(PointsConfig):
    """conf/counters.yaml. ``sets`` is one of ncu's sets, or its sections and metrics."""

    device: str
    sets: Annotated[
        tuple[str, ...], BeforeValidator(as_list), AfterValidator(_not_empty), AfterValidator(_sets)
    ]
    report: Path | None
    timeout_s: float = Field(gt=0)
    artifacts: Path
    wait_s: float | None = Field(ge=0)


def _tool(value: Any) -> str:
    if value not in TOOLS:
        raise ValueError(str(unknown("tool", str(value), TOOLS)))
    return str(value)


class SanitizeConfig(PointsConfig):
    """conf/sanitize.yaml. Problems that are not pinned are three of the preset's first workload."""

    device: str
    tools: Annotated[
        tuple[Annotated[str, BeforeValidator(_tool)], ...],
        BeforeValidator(as_list),
        AfterValidator(_not_empty),
    ]
    timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class EnvironmentConfig(Record):
    """conf/environment.yaml."""

    device: str
    output: Path


class BuildConfig(KernelOptions):
    """conf/build.yaml. ``architectures`` None are those of the last build, at first this machine's GPUs'."""

    device: str
    architectures: Annotated[
        tuple[str, ...] | None, BeforeValidator(lambda v: v if v is None else [str(a) for a in as_list(v)])
    ]
    output: Path


class CeilingsConfig(Record):
    """conf/ceilings.yaml."""

    device: str
    output: Path
    remeasure: bool
    wait_s: float | None = Field(ge=0)


class ReportConfig(Record):
    """conf/report.yaml."""

    input: Path
    output: Path
    device: str


class DocsConfig(Record):
    """conf/docs.yaml."""

    input: Path
    reports: Path
    docs: Annotated[tuple[Path, ...], BeforeValidator(as_list), AfterValidator(_not_empty)]
    check: bool


class CarryConfig(KernelOptions):
    """conf/carry.yaml."""

    preset: PresetConfig
    timing: TimingSettings
    device: str
    points: int = Field(ge=1)
    rounds: int = Field(ge=1)
    margin: float = Field(gt=0, lt=1)
    output: Path
    seed: int
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class FinalsConfig(Record):
    """conf/finals.yaml."""

    kernel: Pin[str]
    preset: PresetConfig
    timing: TimingSettings
    device: str
    margin: float = Field(gt=0, lt=1)
    remeasure: bool
    output: Path
    seed: int
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class VerifyConfig(Record):
    """conf/verify.yaml."""

    kernel: Pin[str]
    device: str
    provider: Pin[str]
    points: int = Field(ge=1)
    sample_seed: int
    margin: float = Field(gt=0, lt=1)
    share: float = Field(ge=0, le=1)
    input: Path
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class CompareConfig(PointsConfig):
    """conf/compare.yaml. ``a`` and ``b`` are read by the command."""

    device: str
    a: Annotated[str | None, AsWritten()]
    b: Annotated[str | None, AsWritten()]
    self_test: bool
    rounds: int = Field(ge=FEWEST_ROUNDS)
    most_rounds: int = Field(ge=FEWEST_ROUNDS, le=1000)
    margin: float = Field(gt=0, lt=1)
    beyond: Literal["margin", "zero"]
    tracking: TrackingConfig = Field(exclude=True)
    points: int | None = Field(ge=1)
    remeasure: bool
    fail_on: Literal["slower"] | None
    format: Literal["text", "markdown"]
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class PruneConfig(Record):
    """conf/prune.yaml. ``parts`` are those of a key, by which a row may be old."""

    kernel: str
    input: Path
    parts: Annotated[
        tuple[Literal["point", "source", "instrument", "environment", "settings"], ...],
        BeforeValidator(as_list),
        AfterValidator(_not_empty),
    ]
    remove: bool


class MigrateConfig(Record):
    """conf/migrate.yaml."""

    input: Path


def _named(value: Any) -> Any:
    if not value:
        raise ValueError("is missing; write kernel=NAME, or kernel=FOLDER/NAME outside of the repository")
    return str(value)


class NewConfig(Record):
    """conf/new.yaml."""

    kernel: Annotated[str, BeforeValidator(_named)]
    source: Annotated[str | None, AsWritten()] = Field(alias="from")
    reference: Annotated[str | None, AsWritten()]


class PublishConfig(Record):
    """conf/publish.yaml."""

    input: Path | None
    runs: Path | None = None
    reports: Path | None
    artifacts: Path | None = None
    kernel: str | None = None
    device: str | None = None
    tracking: TrackingConfig


class TimersConfig(KernelOptions):
    """conf/timers.yaml. Problems are those of the preset's first workload, unless pinned."""

    provider: str | None
    pin: dict[str, Some] = Field(default_factory=dict)
    repeats: int = Field(ge=1)
    seed: int
    timing: TimingSettings
    preset: PresetConfig
    device: str
    output: Path
    wait_s: float | None = Field(ge=0)


class BenchSweepConfig(KernelOptions):
    """conf/bench_sweep.yaml."""

    provider: str
    preset: PresetConfig
    pin: dict[str, Some] = Field(default_factory=dict)
    repeats: int = Field(ge=1)
    device: str


class BenchStartupConfig(Record):
    """conf/bench_startup.yaml."""

    device: str
    only: Annotated[tuple[str, ...] | None, BeforeValidator(as_list), AfterValidator(_not_empty)] = None


class BenchDevicesConfig(KernelOptions):
    """conf/bench_devices.yaml."""

    preset: PresetConfig
    repeats: int = Field(ge=1)
