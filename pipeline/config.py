"""Configuration: Hydra composes conf/, a typed schema checks it, a mistake ends in one sentence.

Every stage starts through ``run_stage``. ``python -m pipeline.<stage> --help`` shows its options.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from rich.console import Console

import kernels
from kernels.point import AXES, DTYPE_NAMES
from pipeline.errors import UserError, unknown
from pipeline.measure import device
from pipeline.measure.ncu import SETS
from pipeline.measure.occupancy import LIMITS
from pipeline.measure.record import Record
from pipeline.measure.settings import TimingSettings

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"

console = Console()
"""Where a stage talks to the user: progress, tables, the closing line."""


def _to_list(value: Any) -> Any:
    return value if value is None or isinstance(value, (list, tuple, ListConfig)) else [value]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {value!r}")
    return value


def _positive(value: int) -> int:
    if value < 1:
        raise ValueError(f"must be at least 1, not {value}")
    return value


def _power_of_two(value: int) -> int:
    if value < 1 or value & (value - 1):
        raise ValueError(f"must be a power of two, not {value}")
    return value


def _warps(value: int) -> int:
    if value not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"must be 1, 2, 4, 8, 16 or 32 (a block has 32 x num_warps threads), not {value}")
    return value


def _dtype(value: Any) -> str:
    if value not in DTYPE_NAMES:
        raise ValueError(str(unknown("dtype", str(value), DTYPE_NAMES)))
    return str(value)


def _kernel(value: str) -> str:
    if value not in kernels.names():
        raise ValueError(str(unknown("kernel", value, kernels.names())))
    return value


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


Size = Annotated[int, BeforeValidator(_whole), AfterValidator(_positive)]
BlockSize = Annotated[int, BeforeValidator(_whole), AfterValidator(_power_of_two)]
NumWarps = Annotated[int, BeforeValidator(_whole), AfterValidator(_warps)]
Dtype = Annotated[str, BeforeValidator(_dtype)]
Architecture = Annotated[str, BeforeValidator(_architecture)]
T = TypeVar("T")
Pin = Annotated[tuple[T, ...] | None, BeforeValidator(_to_list), AfterValidator(_not_empty)]
"""An option that pins an axis: one value, a list, or null for the kernel's own grid."""


class GridConfig(Record):
    """The values a sweep tries for each axis. Rows that are None are the kernel's own number."""

    size: tuple[Size, ...] = Field(min_length=1)
    rows: tuple[Size | None, ...] = Field(default=(None,), min_length=1)
    dtype: tuple[Dtype, ...] = Field(min_length=1)
    block_size: tuple[BlockSize, ...] = Field(min_length=1)
    num_warps: tuple[NumWarps, ...] = Field(min_length=1)
    num_stages: tuple[Size, ...] = (2,)


class KernelConfig(Record):
    """conf/kernel/NAME.yaml: one grid a preset, or a list of them; the first has the sizes that stand for the
    kernel."""

    name: Annotated[str, AfterValidator(_kernel)]
    grid: dict[str, Annotated[tuple[GridConfig, ...], BeforeValidator(_to_list), AfterValidator(_not_empty)]]


class PresetConfig(Record):
    """conf/preset/NAME.yaml: how much to measure. ``auto`` names the preset for each kind of device."""

    name: str
    min_samples: int = Field(default=50, ge=2)
    max_seconds: float = Field(default=1.0, gt=0)
    cpu: str | None = None
    cuda: str | None = None


class TrackingConfig(Record):
    """conf/tracking/NAME.yaml: the MLflow store. ``uri`` null is the repository's own SQLite file."""

    name: Literal["local", "server", "none"]
    uri: str | None


class PointsConfig(Record):
    """Which points of a kernel, and all else that their keys depend on."""

    kernel: KernelConfig
    preset: PresetConfig
    timing: TimingSettings
    size: Pin[Size]
    rows: Pin[Size]
    dtype: Pin[Dtype]
    provider: Pin[str]
    block_size: Pin[BlockSize]
    num_warps: Pin[NumWarps]
    num_stages: Pin[Size]
    output: Path
    seed: int

    def grids(self) -> list[dict[str, Sequence[Any]]]:
        """What varies: the kernel's grids for the preset, with the pinned axes in place of their own.

        Sizes that are pinned without rows are those of the first grid alone, for rows and launches of the
        others were chosen for their sizes. Raises UserError where the kernel has no grid for the preset.
        """
        if self.preset.name not in self.kernel.grid:
            raise unknown(f"preset of {self.kernel.name}", self.preset.name, self.kernel.grid)
        pinned = {name: getattr(self, name) for name in ("size", "rows", "dtype", *AXES)}
        pins = {name: pin for name, pin in pinned.items() if pin is not None}
        grids = self.kernel.grid[self.preset.name]
        if "size" in pins and "rows" not in pins:
            grids = grids[:1]
        return [grid.model_dump() | pins for grid in grids]


class SweepConfig(PointsConfig):
    """conf/sweep.yaml."""

    tracking: TrackingConfig
    device: Annotated[tuple[str, ...], BeforeValidator(_to_list), AfterValidator(_not_empty)]
    remeasure: bool
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
    """conf/profile.yaml. Sizes and dtypes that are not pinned are three of the first grid's, and its
    first."""

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
        tuple[str, ...], BeforeValidator(_to_list), AfterValidator(_not_empty), AfterValidator(_sets)
    ]
    report: Path | None
    timeout_s: float = Field(gt=0)
    artifacts: Path
    wait_s: float | None = Field(ge=0)


class EnvironmentConfig(Record):
    """conf/environment.yaml."""

    device: str
    output: Path


class BuildConfig(Record):
    """conf/build.yaml."""

    kernel: KernelConfig
    device: str
    architectures: Annotated[tuple[str, ...], BeforeValidator(lambda v: [str(a) for a in _to_list(v)])]
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


class PublishConfig(Record):
    """conf/publish.yaml."""

    input: Path
    reports: Path | None
    artifacts: Path | None = None
    kernel: KernelConfig | None = None
    tracking: TrackingConfig


class TimersConfig(Record):
    """conf/timers.yaml."""

    kernel: KernelConfig
    provider: str | None
    shapes: tuple[tuple[Size, ...], ...]
    dtype: Dtype
    block_size: BlockSize
    num_warps: NumWarps
    num_stages: Size
    repeats: Size
    timing: TimingSettings
    preset: PresetConfig
    device: str
    output: Path
    wait_s: float | None = Field(ge=0)


class BenchSweepConfig(Record):
    """conf/bench_sweep.yaml."""

    size: Annotated[tuple[Size, ...], BeforeValidator(_to_list)]
    block_size: Annotated[tuple[BlockSize, ...], BeforeValidator(_to_list)]
    num_warps: Annotated[tuple[NumWarps, ...], BeforeValidator(_to_list)]
    repeats: Size
    device: str


class BenchDevicesConfig(Record):
    """conf/bench_devices.yaml."""

    kernel: KernelConfig
    preset: PresetConfig
    repeats: Size


C = TypeVar("C", bound=Record)


class Stopped(KeyboardInterrupt):
    """A signal that ends a stage as Ctrl-C does: what it measured is kept and shown."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def run_stage(name: str, schema: type[C], run: Callable[[C], None]) -> NoReturn:
    """Run a stage's command line: compose conf/NAME.yaml with the overrides, check it, call ``run``.

    Exits with 0, with 2 after a mistake of the user (one sentence on stderr, no traceback), and with 128
    and its number after a signal: 130 after Ctrl-C, 143 when a scheduler or a container ends it.
    """
    # Hydra then raises what it would print, so that the words are ours.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, _stop)

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)
    def job(config: DictConfig) -> None:
        try:
            run(checked(schema, with_preset(config)))
        except UserError as error:
            fail(str(error))
        except (HydraException, OmegaConfBaseException) as error:
            fail(explain(error, schema))  # here, for Hydra would add words of its own

    try:
        job()
    except UserError as error:
        fail(str(error))
    except Stopped as stopped:
        sys.exit(128 + stopped.number)
    except KeyboardInterrupt:
        sys.exit(130)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        fail(explain(error, schema))
    sys.exit(0)


def fail(sentence: str) -> NoReturn:
    """End the command with a sentence."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def with_preset(config: DictConfig) -> DictConfig:
    """The same configuration with preset ``auto`` replaced by the one for the device."""
    if "preset" not in config or config.preset.name != "auto":
        return config
    wanted = [str(name) for name in _to_list(config.device) or ()]
    if not wanted:
        raise UserError("device: is empty; write a value or a list of values.")
    chosen = config.preset[device.resolve_all(wanted)[0].kind]
    overrides = [o for o in HydraConfig.get().overrides.task if not o.startswith("preset=")]
    hydra_instance = GlobalHydra.instance().hydra
    assert hydra_instance is not None, "a stage runs inside Hydra"
    composed: DictConfig = hydra_instance.compose_config(
        config_name=HydraConfig.get().job.config_name,
        overrides=[*overrides, f"preset={chosen}"],
        run_mode=RunMode.RUN,
    )
    with_hydra = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(with_hydra, dict)
    with_hydra.pop("hydra", None)
    return OmegaConf.create(with_hydra)


def checked(schema: type[C], config: DictConfig) -> C:
    """The configuration as a typed record. Raises UserError that names every wrong option."""
    return validated(schema, OmegaConf.to_container(config, resolve=True, throw_on_missing=False))


def validated(schema: type[C], values: Any) -> C:
    """Options as a typed record. Raises UserError that names every wrong one."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise UserError(" ".join(_sentence(problem, schema) for problem in error.errors())) from error


def _sentence(problem: Any, schema: type[Record]) -> str:
    path = [part for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return str(unknown("option", name, options(schema, path[:-1])))
    text = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else problem["msg"]
    if problem["type"] != "value_error":
        text = f"{text[0].lower()}{text[1:]}, not {problem['input']!r}"
    return f"{name}: {text.rstrip('.')}."


def options(schema: type[Record], path: Sequence[str] = ()) -> list[str]:
    """The options of a group of the schema, as they are written on the command line."""
    model: Any = schema
    for part in path:
        field = (
            model.model_fields.get(part) if isinstance(model, type) and issubclass(model, Record) else None
        )
        model = field.annotation if field else None
    if not (isinstance(model, type) and issubclass(model, Record)):
        return []
    return [".".join([*path, name]) for name in model.model_fields]


def explain(error: Exception, schema: type[Record]) -> str:
    """What an error of Hydra's means for the user, as one sentence."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"can't read {mark.name}, line {mark.line + 1}: {error.problem}."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return str(unknown(group, name, sorted(error.options)))
    if isinstance(error, OverrideParseException):
        return f"can't read '{error.override}': write OPTION=VALUE or OPTION=[VALUE,VALUE]."
    text = str(error)
    if match := re.search(r"You must specify '([^']+)'", text):
        known = ", ".join(sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE)))
        return f"{match[1]} is missing: write {match[1]}=NAME with one of {known}."
    if isinstance(error, ConfigCompositionException) and (
        match := re.search(r"Could not (?:override|append to) '?([\w.@/]+)'?", text)
    ):
        name = match[1]
        return str(unknown("option", name, options(schema, name.split(".")[:-1]) or options(schema)))
    return " ".join(text.split())
