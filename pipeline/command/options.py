"""The options of each command: one schema for each file of conf/, checked before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from kernel_pipeline.records.settings import TimerChoice, TimingSettings
from pipeline.command.values import Architecture, AsWritten, Pin, Place, Seed, Sets, Several, Some, Tool
from pipeline.points import catalog
from pipeline.points.catalog import Entry, Options
from pipeline.points.choice import EVERY, LARGEST
from pipeline.points.search import Sampler
from pipeline.points.searches import SearchBudget
from pipeline.store.retry import Retry

Engine = Literal["ray", "ray-local"]
"""How to join or start a cluster."""

MOST_AHEAD = 1000
"""The most configurations that a search chooses before it learns from their times."""

FEWEST_ROUNDS = 2
"""The fewest rounds: the ratio of a single round has no spread."""


class PresetConfig(Options):
    """conf/preset/NAME.yaml: how much to measure. ``auto`` names the preset for each kind of device.

    Finals have ``rounds``, and up to ``most_rounds`` while undecided. Sweeps measure every problem. Finals,
    profiles, counters and codegen take the problems of ``closer``: all chosen ones, or the largest. Finals
    and profiles take the baseline, and providers within ``near`` times the fastest of their kind (own or
    others'); None takes all. In ``lasting`` rounds of finals, long kernels are also timed after seconds of
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
        """The part of smallest, middle and largest problem that ``closer`` takes."""
        return LARGEST if self.closer == "largest" else EVERY


class TimingConfig(Options):
    """conf/timing/NAME.yaml: ``TimingSettings`` as options."""

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
    """conf/tracking/NAME.yaml: the MLflow store. ``uri`` null means MLFLOW_TRACKING_URI if it is set, else
    the repository's SQLite file, or with ``server`` this machine's server. The address may hold a password,
    so no kept or printed configuration contains it."""

    name: Literal["local", "server", "none"]
    uri: str | None = Field(repr=False, exclude=True)

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.uri == "":
            raise ValueError("uri is empty; write tracking.uri=ADDRESS, or leave it out")
        if self.name == "none" and self.uri is not None:
            raise ValueError("none publishes nothing, and uri says where to publish; leave out one of them")
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
    and of its providers' parameters, which replace those of the YAML."""

    preset: PresetConfig
    timing: TimingConfig
    provider: Pin[str]
    pin: dict[str, Some] = Field(default_factory=dict)
    output: Place
    seed: Seed


def _ends(search: str, of: ValidationInfo) -> str:
    """Check that a search has an end, and that an exhaustive sweep has none."""
    if not {"trials", "seconds"} <= of.data.keys():
        return search  # one of them is invalid, and has an error of its own
    ends = [name for name in ("trials", "seconds") if of.data[name] is not None]
    if of.data.get("replay"):
        if search == "exhaustive" or ends:
            raise ValueError(
                "replay=true plays a search to several ends; write search=tpe or search=random alone"
            )
        return search
    if search == "exhaustive" and ends:
        raise ValueError(f"exhaustive measures every point; write search=tpe, or leave {ends[0]}= out")
    if search != "exhaustive" and not ends:
        raise ValueError(f"{search} needs an end; write trials=N, seconds=N or both")
    if search != "exhaustive" and of.data.get("debug"):
        raise ValueError(f"{search} chooses by times, and debug=true measures no time; leave one of them out")
    return search


class SweepConfig(PointsConfig):
    """conf/sweep.yaml. ``allow`` None: every failure of an own provider counts. ``cluster`` None: measure on
    this host."""

    tracking: TrackingConfig = Field(exclude=True)
    workload: Place | None
    device: Several[str]
    trials: int | None = Field(ge=1)
    seconds: float | None = Field(gt=0)
    ahead: int = Field(ge=1, le=MOST_AHEAD)
    replay: bool
    remeasure: bool
    audit: Literal["best", "all"]
    retry: Retry
    allow: Pin[Literal["incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout", "all"]]
    debug: bool
    cluster: Engine | None
    search: Annotated[Literal["exhaustive", Sampler], AfterValidator(_ends)]
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)

    @property
    def budget(self) -> SearchBudget | None:
        """The sampler and the end of a search; None if every point is measured."""
        if self.search == "exhaustive" or self.replay:
            return None
        return SearchBudget(self.search, self.trials, self.seconds, self.ahead, self.seed)


class CodegenConfig(PointsConfig):
    """conf/codegen.yaml. ``architectures`` None: the GPU's own architecture, or Hopper's without a GPU."""

    device: str
    architectures: Pin[Architecture]
    show: Literal["ptx", "sass"]
    function: str | None
    a: str | None
    b: str | None
    lazily: bool
    artifacts: Place
    wait_s: float | None = Field(ge=0)


class ProfileConfig(PointsConfig):
    """conf/profile.yaml. Dimensions that are not pinned come from three problems of the preset's first
    workload."""

    device: str
    stacks: bool
    tensorboard: Place | None
    artifacts: Place
    wait_s: float | None = Field(ge=0)


class CountersConfig(PointsConfig):
    """conf/counters.yaml. ``sets`` is one of ncu's sets, or a list of its sections and metrics; None: the
    preset's."""

    device: str
    sets: Sets | None
    timeout_s: float = Field(gt=0)
    artifacts: Place
    wait_s: float | None = Field(ge=0)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The set of ncu, or its sections and metrics."""
        return self.sets or self.preset.sets


class SanitizeConfig(PointsConfig):
    """conf/sanitize.yaml. Dimensions that are not pinned come from three problems of the preset's first
    workload."""

    device: str
    tools: Several[Tool]
    timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class EnvironmentConfig(Options):
    """conf/environment.yaml."""

    device: str
    output: Place


class BuildConfig(KernelOptions):
    """conf/build.yaml. ``architectures`` None: those of the last build; for a first build, those of this
    machine's GPUs."""

    device: str
    architectures: Pin[Annotated[str, BeforeValidator(str)]]
    lazily: bool
    output: Place


class CeilingsConfig(Options):
    """conf/ceilings.yaml."""

    device: str
    output: Place
    remeasure: bool
    wait_s: float | None = Field(ge=0)


class ReportConfig(Options):
    """conf/report.yaml."""

    input: Place
    output: Place
    device: str


class DocsConfig(Options):
    """conf/docs.yaml."""

    input: Place
    docs: Several[Place]
    check: bool


class FinalsConfig(Options):
    """conf/finals.yaml. ``rounds`` and ``most_rounds`` None: the preset's."""

    kernel: Pin[str]
    workload: Place | None
    preset: PresetConfig
    timing: TimingConfig
    device: str
    margin: float = Field(gt=0, lt=1)
    remeasure: bool
    rounds: int | None = Field(ge=FEWEST_ROUNDS)
    most_rounds: int | None = Field(ge=FEWEST_ROUNDS)
    output: Place
    seed: Seed
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class BestConfig(KernelOptions):
    """conf/best.yaml. ``pin`` holds values of the kernel's dimensions. ``gpu`` None: this machine's GPU, or
    without one the only GPU with rows."""

    pin: dict[str, Some] = Field(default_factory=dict)
    gpu: str | None
    input: Place


class TuneConfig(Options):
    """conf/tune.yaml. ``gpu`` None: the GPU of ``device``; with ``replay`` every GPU."""

    device: str
    gpu: str | None
    replay: bool
    output: Place


class VerifyConfig(Options):
    """conf/verify.yaml."""

    kernel: Pin[str]
    device: str
    provider: Pin[str]
    points: int = Field(ge=1)
    sample_seed: Seed
    margin: float = Field(gt=0, lt=1)
    share: float = Field(ge=0, le=1)
    note: bool
    input: Place
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class AccuracyConfig(Options):
    """conf/accuracy.yaml."""

    kernel: Pin[str]
    device: str
    points: int = Field(ge=1)
    sample_seed: Seed
    workers: int = Field(ge=2)
    switchers: str | None
    input: Place
    output: Place
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class CompareConfig(PointsConfig):
    """conf/compare.yaml. The command itself interprets ``a`` and ``b``. Two machines can be compared without
    a kernel."""

    kernel: str | None  # type: ignore[assignment]  # all else that is compared is of one kernel
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


class ResultsConfig(Options):
    """conf/results.yaml. A row is old if it differs in one of the ``parts`` of its key."""

    action: Literal["merge", "prune"] | None
    source: Place | None
    output: Place
    kernel: str
    parts: Several[Literal["point", "source", "measurement", "environment", "settings"]]
    write: bool


def _named(value: Any) -> Any:
    if not value:
        raise ValueError("is missing; write kernel=NAME, or kernel=FOLDER/NAME outside of the repository")
    return str(value)


class NewConfig(Options):
    """conf/new.yaml."""

    kernel: Annotated[str, BeforeValidator(_named)]


class PublishConfig(Options):
    """conf/publish.yaml."""

    input: Place | None
    runs: Place | None = None
    reports: Place | None
    artifacts: Place | None = None
    kernel: str | None = None
    device: str | None = None
    tracking: TrackingConfig


class BenchmarksConfig(KernelOptions):
    """conf/benchmarks.yaml. Dimensions that are not pinned come from the preset's first workload; ``sweep``
    takes all workloads of the preset."""

    benchmark: Literal["timers", "inputs", "sweep", "devices", "waits"] | None
    provider: str | None
    pin: dict[str, Some] = Field(default_factory=dict)
    repeats: int = Field(ge=1)
    work_s: float = Field(ge=0)
    only: Pin[str]
    seed: Seed
    timing: TimingConfig
    preset: PresetConfig
    device: str
    output: Place
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)
