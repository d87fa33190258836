"""Run a command line: compose it with Hydra, check it, call the command, and report a mistake in one
sentence.

A kernel's own dimensions and parameters, which Hydra does not know, are pins: ``block_size=1024`` passes
through Hydra as ``pin.block_size``, and the kernel says whether it has that name. Hydra never sees
``tracking.uri=``: it may hold a password, and Hydra writes the overrides of a multirun to a file.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar, get_args

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.machine import device
from kernel_pipeline.records.credentials import withdraw
from kernel_pipeline.toolchain import inductor

from .. import PACKAGE
from ..points import catalog, plan
from ..points.catalog import Options, as_list
from ..reporting import terminal
from ..store import commit
from . import explanation, interrupt
from . import words as command_words
from .errors import explain, fail, options, unknown_option, validated
from .option_groups import KernelOptions, PointsConfig
from .words import CHOSEN, CONF, EXPERIMENT, PIN, TRACKING_URI, CommandLine

console = terminal.Terminal()
"""Prints progress, tables and the closing line of a command."""

say = partial(console.print, highlight=False, soft_wrap=True)
"""Prints a line without breaking it, so that a link or a command in it can be copied."""

warn = partial(say, style="yellow")

C = TypeVar("C", bound=Options)


class UnsuccessfulError(Exception):
    """Raised if a command ran to its end without success. The text says why; ``code`` is the exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Stopped(KeyboardInterrupt):
    """Raised by a signal that ends a stage as Ctrl-C does: the rows are kept."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def run_stage(name: str, schema: type[C], run: Callable[[C], None]) -> NoReturn:
    """Run a command that takes at most one kernel, as ``run_each`` does."""

    def run_one(configs: Sequence[C]) -> None:
        if len(configs) > 1:
            names = ",".join(config.kernel for config in configs)  # type: ignore[attr-defined]  # several have
            raise UserError(
                f"kernel={names} is several values: write -m kernel={names} to run the command once for each."
            )
        run(configs[0])

    run_each(name, schema, run_one)


def run_each(name: str, schema: type[C], run: Callable[[Sequence[C]], None]) -> NoReturn:
    """Run a stage's command line: compose conf/NAME.yaml with the overrides, check it, and call ``run``.

    ``run`` gets the options of all kernels that ``kernel=a,b`` names; with ``experiment=a,b`` it is called
    once for each experiment. Exits with 0 after success, with 1 if ``run`` raised UnsuccessfulError, and with
    2 after a mistake of the user (one sentence on stderr, no traceback). After a signal it exits with 128 and
    the signal's number: 130 after Ctrl-C, 143 when a scheduler or a container ends it.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises errors, and ``explain`` makes sentences of them
    written = sys.argv[1:]
    with ExitStack() as stack:
        try:
            line = command_words.read(written, schema)
        except UserError as error:
            fail(str(error))
        _protect(schema)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _stop)
        interrupt.raise_on_interrupt()

        jobs = Path("outputs", "jobs", commit.new_run()).resolve()
        sys.argv[1:] = [*line.given, *_multirun_folders(line, written, jobs, stack)]
        job = Job(name, schema, line, written, run)
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()
        except UserError as error:
            fail(str(error))
        except UnsuccessfulError as error:  # raised by a scheduler's job
            job.failed.append(error)
        except KeyboardInterrupt as stop:
            _end(stop, line)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            fail(explain(error, schema, line.given))
        except Exception as error:
            if line.launcher is None:
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = (lines or [type(error).__name__])[0].rstrip(".")
            fail(f"{line.launcher} could not run the jobs: {reason}. Their output is in {jobs}.")
    _conclude(job, line, jobs if line.launcher else None)


def _protect(schema: type[Options]) -> None:
    """Before kernels run, protect the caches of their compiled code from other accounts, and the tracker's
    secrets from the kernels."""
    if issubclass(schema, PointsConfig):
        try:
            os.environ |= inductor.caches()
        except UserError as error:
            fail(str(error))
    if "tracking" not in schema.model_fields:
        withdraw()


def _end(stop: KeyboardInterrupt, line: CommandLine) -> NoReturn:
    """Exit after a signal, and print how far the command came, from the notes on the exception."""
    notes = list(getattr(stop, "__notes__", []))
    if line.launcher is not None:
        notes.append("The jobs that were handed to the scheduler go on; scancel ends them.")
    console.print(" ".join(["Stopped.", *notes]), soft_wrap=True)
    if isinstance(stop, Stopped):
        sys.exit(128 + stop.number)
    interrupt.end()
    sys.exit(interrupt.CODE)


def _conclude(job: Job[Any], line: CommandLine, jobs: Path | None) -> NoReturn:
    """Exit with the command's code. ``jobs`` is the folder of a scheduler's jobs."""
    if jobs is not None:
        say(f"The output of the jobs is in {jobs}.")
    if job.failed:
        fail("\n".join(map(str, job.failed)), code=min(error.code for error in job.failed))
    if command_words.is_multirun(list(line.given)) and not job.is_run and jobs is None:
        fail("-m has nothing to run: no option has a value.")
    sys.exit(0)


class Job(Generic[C]):
    """The function that Hydra calls: once, or in a multirun once for each combination of values.

    A scheduler's launcher sends it to another host and calls it there. On that host it raises the errors that
    would end the command here, and the launcher returns them.
    """

    def __init__(
        self,
        name: str,
        schema: type[C],
        line: CommandLine,
        written: Sequence[str],
        run: Callable[[Sequence[C]], None],
        is_elsewhere: bool = False,
    ) -> None:
        self.failed: list[UnsuccessfulError] = []
        self.is_run = False
        self._sent = name, schema, line, list(written)
        self._run = run
        self._is_elsewhere = is_elsewhere

    def __call__(self, config: DictConfig) -> None:
        """Run the command with a composed configuration."""
        name, schema, line, written = self._sent
        sys.argv[1:] = written  # rows record this command line
        self.is_run = True
        made: list[list[C]] = []
        try:
            made = [checked(schema, one, line) for one in compositions(config, line.experiments)]
            for configs in made:
                try:
                    self._run(configs)
                except UnsuccessfulError as error:  # the next experiments still run
                    self.failed.append(error)
            if self.failed and self._is_elsewhere:
                raise UnsuccessfulError("\n".join(map(str, self.failed)))
        except UserError as error:
            if self._is_elsewhere:
                raise
            if not (written or made):
                print(explanation.of_command(name))
            fail(str(error))
        except (HydraException, OmegaConfBaseException) as error:
            sentence = explain(error, schema, line.given)
            if self._is_elsewhere:
                raise UserError(sentence) from error
            fail(sentence)  # here, because Hydra would add words of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, self._sent


def _elsewhere(name: str, schema: type[C], line: CommandLine, written: Sequence[str]) -> Job[C]:
    run = importlib.import_module(f"{PACKAGE}.{name}").run
    return Job(name, schema, line, written, run, is_elsewhere=True)


def _multirun_folders(line: CommandLine, words: Sequence[str], jobs: Path, stack: ExitStack) -> list[str]:
    """Return the options that keep Hydra's multirun.yaml out of the working folder. A scheduler's jobs have a
    folder for this file and for their output."""
    if not command_words.is_multirun(words):
        return []
    if line.launcher is not None:
        return [f"hydra.sweep.dir='{jobs}'", f"hydra.launcher.submitit_folder='{jobs}/%j'"]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return [f"hydra.sweep.dir='{folder}'"]


def compositions(config: DictConfig, experiments: Sequence[str]) -> Iterator[DictConfig]:
    """Yield the configuration of each experiment, or the command's only configuration. Preset ``auto``
    becomes the device's preset.
    """
    given = list(HydraConfig.get().overrides.task)
    yield with_preset(config, given)
    for name in experiments[1:]:
        others = [word for word in given if not word.startswith(f"{EXPERIMENT}=")]
        words = [f"{EXPERIMENT}='{name}'", *others]
        yield with_preset(_composed(words), words)


def with_preset(config: DictConfig, words: Sequence[str]) -> DictConfig:
    """Return the configuration with preset ``auto`` replaced by the preset for the device."""
    if "preset" not in config or config.preset.name != "auto":
        return config
    given = config.device
    wanted = [str(name) for name in (given if isinstance(given, ListConfig) else as_list(given) or ())]
    if not wanted:
        raise UserError("device: is empty; write a value or a list of values.")
    chosen = config.preset[kind_of(wanted, config.get("cluster"))]
    return _composed([*(word for word in words if not word.startswith("preset=")), f"preset={chosen}"])


def kind_of(wanted: Sequence[str], cluster: str | None) -> str:
    """Return the kind of device that ``device=`` means. On a cluster that is ``cuda``, unless the option is
    ``cpu``. Raises UserError as ``device.resolve_all`` does."""
    if cluster is not None:
        return "cpu" if list(wanted) == ["cpu"] else "cuda"
    return device.resolve_all(wanted)[0].kind


def _composed(words: Sequence[str]) -> DictConfig:
    """Return the configuration of this command with other words, without Hydra's own settings."""
    instance = GlobalHydra.instance().hydra
    assert instance is not None, "a stage runs inside Hydra"
    name = str(HydraConfig.get().job.config_name)
    composed = instance.compose_config(config_name=name, overrides=list(words), run_mode=RunMode.RUN)
    values = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(values, dict)
    values.pop("hydra", None)
    return OmegaConf.create(values)


def checked(schema: type[C], config: DictConfig, line: CommandLine) -> list[C]:
    """Return the options of a composition as typed records, one for each kernel. Raises UserError that names
    every wrong option."""
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    values |= values.pop(CHOSEN, None) or {}
    if values.get("kernel") == "???":
        names = f"NAME with one of {', '.join(catalog.names())}"
        wanted = names if issubclass(schema, KernelOptions) else "PATH with the path of a problem"
        wrong = unknown_option(schema, values.get(PIN) or {})
        raise wrong or UserError(f"kernel is missing: write kernel={wanted}.")
    if line.tracking_uri is not None:
        if "tracking" not in schema.model_fields:
            raise unknown("option", TRACKING_URI, options(schema))
        values["tracking"]["uri"] = None if line.tracking_uri == "null" else line.tracking_uri
    made = [validated(schema, values | one) for one in _each_kernel(schema, values.get("kernel"))]
    for one in made:
        check_names(one)
        check_timer(one)
    return made


def _each_kernel(schema: type[Options], names: Any) -> list[dict[str, Any]]:
    """Return the options that differ by kernel: one mapping for each kernel if several kernels are named and
    the command takes one at a time."""
    field = schema.model_fields.get("kernel")
    # A command without kernels refuses the option itself, and a command that takes a list gets the list.
    takes_one = field is not None and str in (field.annotation, *get_args(field.annotation))
    if not isinstance(names, list) or not takes_one:
        return [{}]
    if not names:
        raise UserError("kernel: is empty; write a value or a list of values.")
    return [{"kernel": name} for name in dict.fromkeys(names)]


def for_each(configs: Sequence[C], do: Callable[[C], None], where: Path) -> None:
    """Call ``do`` for each kernel, even after an earlier one failed. For several kernels, print the folder of
    their results. Raises UserError with the sentence of each kernel that failed."""
    if len(configs) == 1:
        do(configs[0])
        return
    failed = []
    for config in configs:
        try:
            do(config)
        except UserError as error:
            failed.append(f"{config.kernel}: {error}")  # type: ignore[attr-defined]  # commands of kernels
    if failed:
        raise UserError("\n".join(failed))
    say(f"{len(configs)} kernels: {where}.")


def check_names(config: Options) -> None:
    """Check the names of the kernel and of the pins. Raises UserError for an unknown kernel, and for a pin
    that neither the command nor the kernel has."""
    pins = getattr(config, PIN, {})
    if not isinstance(config, KernelOptions) or (config.kernel is None and not pins):
        return
    if config.kernel is None:
        names = [name for name in type(config).model_fields if name != PIN]
        raise UserError(f"{unknown('option', next(iter(pins)), names)} Names of a kernel need kernel=NAME.")
    entry = config.entry
    for name in pins:
        if name not in plan.names(entry):
            raise plan.unknown_name(entry, name, type(config).model_fields)


def check_timer(config: Options) -> None:
    """Check the timer against the device. Raises UserError for a GPU's timer on a CPU."""
    timing, wanted = getattr(config, "timing", None), getattr(config, "device", None)
    if timing is None or wanted is None or timing.timer == "auto":
        return
    if kind_of(as_list(wanted), getattr(config, "cluster", None)) == "cpu":
        raise UserError(
            f"timing.timer={timing.timer} needs a GPU: a CPU is timed by the host's clock alone; "
            "leave timing.timer out."
        )
