"""The options of each command: one schema for each file of conf/, checked before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, create_model

from ..points.catalog import Options
from ..points.search import Sampler
from ..points.searches import SearchBudget
from ..store.retry import Retry
from .option_groups import (
    FEWEST_ROUNDS,
    KernelOptions,
    PointsConfig,
    PresetConfig,
    TimingConfig,
    TrackingConfig,
)
from .values import (
    Architecture,
    AsWritten,
    Duration,
    Engine,
    PathText,
    Pin,
    Place,
    Seed,
    Sets,
    Several,
    Share,
    Size,
    Some,
    Tool,
)

MOST_AHEAD = 1000
"""The maximum number of configurations that a search chooses before it learns from their times."""


def _ends(search: str, of: ValidationInfo) -> str:
    """Check that a search has an end, and that an exhaustive sweep has none."""
    if not {"trials", "seconds"} <= of.data.keys():
        return search  # one of them is invalid, and has an error of its own
    ends = [name for name in ("trials", "seconds") if of.data[name] is not None]
    if of.data.get("replay"):
        if search == "exhaustive" or ends:
            raise ValueError(
                "replay=true tries several numbers of trials; write search=tpe or search=random "
                "without trials= and seconds="
            )
        return search
    if search == "exhaustive" and ends:
        raise ValueError(f"exhaustive measures every point; write search=tpe, or leave {ends[0]}= out")
    if search != "exhaustive" and not ends:
        raise ValueError(f"{search} needs a limit; write trials=N, seconds=N or both")
    if search != "exhaustive" and of.data.get("debug"):
        raise ValueError(f"{search} chooses by times, and debug=true measures no time; leave one of them out")
    return search


class SweepConfig(PointsConfig):
    """The options of conf/sweep.yaml. With ``allow`` None every failure of an own provider counts. With
    ``cluster`` None the sweep measures on this host.
    """

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
    """The options of conf/codegen.yaml. ``architectures`` None means the GPU's own architecture, or Hopper's
    without a GPU.
    """

    device: str
    architectures: Pin[Architecture]
    show: Literal["ptx", "sass", "lines", "ttgir", "llir"]
    function: str | None
    lazily: bool
    artifacts: Place
    wait_s: float | None = Field(ge=0)


class ProfileConfig(PointsConfig):
    """The options of conf/profile.yaml. Dimensions that are not pinned come from three problems of the
    preset's first workload."""

    device: str
    stacks: bool
    tensorboard: Place | None
    artifacts: Place
    wait_s: float | None = Field(ge=0)


class CountersConfig(PointsConfig):
    """The options of conf/counters.yaml. ``kernel`` None: a ``program`` or a ``report``. ``sets`` is one of
    ncu's sets, or a list of its sections and metrics; None: the preset's."""

    kernel: str | None  # type: ignore[assignment]  # a report has no kernel
    program: Annotated[str | None, AsWritten()]
    launches: int = Field(ge=1)
    report: Place | None
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
    """The options of conf/sanitize.yaml. Dimensions that are not pinned come from three problems of the
    preset's first workload."""

    device: str
    tools: Several[Tool]
    timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class EnvironmentConfig(Options):
    """The options of conf/environment.yaml."""

    device: str
    output: Place


class BuildConfig(KernelOptions):
    """The options of conf/build.yaml. ``architectures`` None means the architectures of the last build, and
    for a first build those of this machine's GPUs.
    """

    device: str
    architectures: Pin[Annotated[str, BeforeValidator(str)]]
    lazily: bool
    output: Place


class ReportConfig(Options):
    """The options of conf/report.yaml."""

    input: Place
    output: Place
    device: str


class DocsConfig(Options):
    """The options of conf/docs.yaml."""

    input: Place
    docs: Several[Place]
    check: bool


class FinalsConfig(Options):
    """The options of conf/finals.yaml. ``rounds`` and ``most_rounds`` None mean the preset's numbers."""

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


class HeldoutConfig(Options):
    """The options of conf/heldout.yaml. ``draw`` None means the number of today's date."""

    kernel: Pin[str]
    problems: int = Field(ge=1)
    draw: int | None = Field(ge=0)
    device: str
    preset: PresetConfig
    timing: TimingConfig
    by: Share
    rounds: int = Field(ge=FEWEST_ROUNDS)
    most_rounds: int = Field(ge=FEWEST_ROUNDS, le=1000)
    at_most: Duration
    output: Place
    seed: Seed
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class TuneConfig(Options):
    """The options of conf/tune.yaml. ``gpu`` None means the GPU of ``device``, and with ``replay`` every
    GPU.
    """

    kernel: Pin[str]
    device: str
    gpu: str | None
    replay: bool
    output: Place


class VerifyConfig(Options):
    """The options of conf/verify.yaml."""

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
    """The options of conf/accuracy.yaml."""

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


def _unless_all(value: Any) -> Any:
    return None if value == "all" else value


class CompareConfig(PointsConfig):
    """The options of conf/compare.yaml. The command itself interprets ``a`` and ``b``. ``kernel`` None means
    all kernels.
    """

    kernel: Annotated[str | None, BeforeValidator(_unless_all)]  # type: ignore[assignment]  # all are compared
    device: str
    a: Annotated[str | None, AsWritten()]
    b: Annotated[str | None, AsWritten()]
    self_test: bool
    language: Pin[Literal["torch", "triton", "gluon", "cuda", "cpp", "numba"]]
    rounds: int = Field(ge=FEWEST_ROUNDS)
    most_rounds: int = Field(ge=FEWEST_ROUNDS, le=1000)
    by: Share
    at_most: Duration
    undecided: Literal["pass", "fail"] | None
    bisect: bool
    same_code: Literal["skip", "time"]
    tracking: TrackingConfig = Field(exclude=True)
    points: int | None = Field(ge=1)
    remeasure: bool
    format: Literal["text", "markdown"]
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class JudgeConfig(Options):
    """The options of conf/judge.yaml. ``pin`` holds sizes of the problem, in place of the file's."""

    action: Literal["board"] | None
    kernel: PathText
    submission: Pin[Place]
    best: Place | None
    workloads: Place | None
    most_workloads: int | None = Field(ge=1)
    device: str
    scale: float = Field(gt=0, le=1)
    pin: dict[str, Size] = Field(default_factory=dict)
    other_sizes: bool
    preset: PresetConfig
    timing: TimingConfig
    torch_compile: bool
    rounds: int = Field(ge=0)
    most_rounds: int = Field(ge=FEWEST_ROUNDS, le=1000)
    margin: float = Field(gt=0, lt=1)
    memory_gb: float | None = Field(gt=0)
    format: Literal["text", "json"]
    reward: bool
    output: Place
    seed: Seed
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)


class ResultsConfig(KernelOptions):
    """The options of conf/results.yaml. ``kernel`` None means all kernels. ``pin`` holds values of the
    kernel's dimensions. ``gpu`` None means, for best, this machine's GPU, or on a machine without a GPU the
    only GPU with rows; for prune all machines. A row is old if it differs in one of the ``parts`` of its key.
    """

    action: Literal["best", "merge", "prune"] | None
    source: Place | None
    output: Place
    kernel: Annotated[str | None, BeforeValidator(_unless_all)]  # type: ignore[assignment]  # all are pruned
    pin: dict[str, Some] = Field(default_factory=dict)
    gpu: str | None
    parts: Several[Literal["point", "source", "measurement", "environment", "settings"]]
    write: bool


def _named(kernel: str | None, of: ValidationInfo) -> str | None:
    """Check that either a kernel or a project is named."""
    if of.data.get("project") is not None:
        if kernel is not None or of.data.get("from") is not None:
            raise ValueError("project= goes with no other option; leave the others out")
    elif kernel is None:
        raise ValueError("is missing; write kernel=NAME, kernel=FOLDER/NAME or project=FOLDER")
    return kernel


_FROM: dict[str, Any] = {"from": (Annotated[PathText | None, AsWritten()], None)}
_From: Any = create_model("_From", __base__=Options, **_FROM)
"""The option ``from``, which no class statement can name."""


class NewConfig(_From):
    """The options of conf/new.yaml."""

    project: Place | None = None
    kernel: Annotated[PathText | None, AfterValidator(_named)]

    @property
    def source(self) -> str | None:
        """The file whose launcher is taken."""
        given: str | None = getattr(self, "from")
        return given


class PublishConfig(Options):
    """The options of conf/publish.yaml."""

    input: Place | None
    runs: Place | None = None
    reports: Place | None
    artifacts: Place | None = None
    kernel: str | None = None
    device: str | None = None
    tracking: TrackingConfig


class BenchmarksConfig(KernelOptions):
    """The options of conf/benchmarks.yaml. Dimensions that are not pinned come from the preset's first
    workload."""

    benchmark: Literal["ceilings", "timers", "inputs"] | None
    provider: str | None
    pin: dict[str, Some] = Field(default_factory=dict)
    repeats: int = Field(ge=1)
    work_s: float = Field(ge=0)
    seed: Seed
    timing: TimingConfig
    preset: PresetConfig
    device: str
    output: Place
    point_timeout_s: float = Field(gt=0)
    wait_s: float | None = Field(ge=0)
