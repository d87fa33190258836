"""A command line from its words to its end: composed by Hydra, checked, run, and every mistake one sentence.

Names that Hydra does not know are a kernel's own dimensions and parameters: ``block_size=1024`` goes through
Hydra as ``pin.block_size``, and the kernel says whether it has it. Hydra never sees ``tracking.uri=``: it may
hold a password, of any letters, and Hydra writes the overrides of a multirun to a file.
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
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kernel_pipeline import loading
from pipeline import UserError, unknown
from pipeline.command import explanation, forked, interrupt
from pipeline.command import words as command_words
from pipeline.command.options import KernelOptions, PointsConfig
from pipeline.command.refusals import explain
from pipeline.command.sentences import fail, options, validated
from pipeline.command.words import CHOSEN, CONF, EXPERIMENT, PIN, TRACKING_URI, CommandLine
from pipeline.machine import device
from pipeline.points import plan
from pipeline.points.catalog import as_list
from pipeline.points.frozen import Record
from pipeline.reporting import terminal
from pipeline.store import commit
from pipeline.store.credentials import withdraw
from pipeline.toolchain import inductor

console = terminal.Terminal()
"""Where a command talks to the user: progress, tables, the closing line."""

say = partial(console.print, highlight=False, soft_wrap=True)
"""Prints a line as it is, so that a link or a command in it can be copied."""

warn = partial(say, style="yellow")


C = TypeVar("C", bound=Record)

HYDRA = "1.3"
"""The version of Hydra whose ways commands have."""


class UnsuccessfulError(Exception):
    """What was asked for was done, and its result is no success; the text says why. The exit code is 1."""


class Stopped(KeyboardInterrupt):
    """A signal that ends a stage as Ctrl-C does: what it measured is kept."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def run_stage(name: str, schema: type[C], run: Callable[[C], None]) -> NoReturn:
    """``run_each`` for a command that takes one kernel, or none."""

    def run_one(configs: Sequence[C]) -> None:
        if len(configs) > 1:
            names = ",".join(config.kernel for config in configs)  # type: ignore[attr-defined]  # several have
            raise UserError(
                f"kernel={names} is several values: write -m kernel={names} to run the command once for each."
            )
        run(configs[0])

    run_each(name, schema, run_one)


def run_each(name: str, schema: type[C], run: Callable[[Sequence[C]], None]) -> NoReturn:
    """Run a stage's command line: compose conf/NAME.yaml with the overrides, check it, and call ``run`` with
    the options for each kernel that ``kernel=a,b`` names; of ``experiment=a,b`` once for each.

    Exits with 0; with 1 if ``run`` raised UnsuccessfulError; with 2 after a mistake of the user (one sentence
    on stderr, no traceback); and with 128 and its number after a signal: 130 after Ctrl-C, 143 when a
    scheduler or a container ends it.
    """
    # Hydra then raises what it would print, so that the words are ours.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    written = sys.argv[1:]
    with ExitStack() as stack:
        try:
            line = command_words.read(written, schema)
            _keep_apart(schema)
        except UserError as error:
            fail(str(error))
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
                signal.signal(number, _stop)
        interrupt.raised()

        jobs = Path("outputs", "jobs", commit.new_run()).resolve()
        sys.argv[1:] = [*line.given, *_record(line, written, jobs, stack)]
        job = Job(name, schema, line, written, run)
        try:
            if any(word.startswith("-") for word in line.given):
                hydra.main(version_base=HYDRA, config_path=str(CONF), config_name=name)(job)()
            else:
                run_once(name, sys.argv[1:], job)
        except UserError as error:
            fail(str(error))
        except UnsuccessfulError as error:  # of a job elsewhere
            job.failed.append(str(error))
        except KeyboardInterrupt as stop:
            _end(stop, line)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            fail(explain(error, schema, line.given))
        except Exception as error:
            if line.launcher is None:
                raise
            fail(
                f"{line.launcher} could not run the jobs: {_first_line(error)}. What they said is in {jobs}."
            )
    _conclude(job, line, jobs if line.launcher else None)


def _keep_apart(schema: type[Record]) -> None:
    """Keep other accounts from the code that kernels compile to, and kernels from the tracker's secrets: a
    command may run kernels, in this process or in those that it starts."""
    if issubclass(schema, PointsConfig):
        os.environ |= inductor.caches()
    if "tracking" not in schema.model_fields:
        withdraw()


def _end(stop: KeyboardInterrupt, line: CommandLine) -> NoReturn:
    """End after a signal, with what a command has added to it of how far it came."""
    notes = list(getattr(stop, "__notes__", []))
    if line.launcher is not None:
        notes.append("The jobs that were handed to the scheduler go on; scancel ends them.")
    console.print(" ".join(["Stopped.", *notes]), soft_wrap=True)
    if isinstance(stop, Stopped):
        sys.exit(128 + stop.number)
    interrupt.end()
    sys.exit(interrupt.CODE)


def _conclude(job: Job[Any], line: CommandLine, jobs: Path | None) -> NoReturn:
    """End as what was run says; ``jobs`` is the folder of what a scheduler's jobs said."""
    if jobs is not None:
        console.print(f"What the jobs said is in {jobs}.", highlight=False, soft_wrap=True)
    if job.failed:
        fail("\n".join(job.failed), code=1)
    if command_words.is_multirun(list(line.given)) and not job.is_run and jobs is None:
        fail("-m has nothing to run: no option has a value.")
    sys.exit(0)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")


class Job(Generic[C]):
    """What Hydra calls once, or in a multirun once for each of several values.

    A scheduler's launcher sends it to another host and calls it there. There it raises what would end the
    command here, and the launcher hands that back.
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
        self.failed: list[str] = []
        self.is_run = False
        self._told = name, schema, line, list(written)
        self._run = run
        self._is_elsewhere = is_elsewhere

    def __call__(self, config: DictConfig) -> None:
        """Run the command with a composed configuration."""
        name, schema, line, written = self._told
        sys.argv[1:] = written  # what a row says of its command
        self.is_run = True
        made: list[list[C]] = []
        try:
            made = [made_of(schema, one, line) for one in compositions(config, line.experiments)]
            failed = run_all(made, self._run)
            if failed and self._is_elsewhere:
                raise UnsuccessfulError("\n".join(failed))
            self.failed += failed
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
            fail(sentence)  # here, for Hydra would add words of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return _elsewhere, self._told


def _elsewhere(name: str, schema: type[C], line: CommandLine, written: Sequence[str]) -> Job[C]:
    run = importlib.import_module(f"pipeline.{name}").run
    return Job(name, schema, line, written, run, is_elsewhere=True)


def _record(line: CommandLine, words: Sequence[str], jobs: Path, stack: ExitStack) -> list[str]:
    """What keeps Hydra from leaving the file multirun.yaml where a multirun was started; a scheduler's jobs
    have a folder for it and for what they say."""
    if not command_words.is_multirun(words):
        return []
    if line.launcher is not None:
        return [f"hydra.sweep.dir='{jobs}'", f"hydra.launcher.submitit_folder='{jobs}/%j'"]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    return [f"hydra.sweep.dir='{folder}'"]


def run_once(name: str, words: Sequence[str], job: Callable[[DictConfig], None]) -> None:
    """Run a command without flags, as ``hydra.main`` does, which composes its configuration one time more to
    find out that it has none."""
    with initialize_config_dir(str(CONF), job_name=name, version_base=HYDRA):
        composed = _with_hydra(name, words)
        HydraConfig.instance().set_config(composed)
        job(_without_hydra(composed))


def run_all(several: Sequence[Sequence[C]], run: Callable[[Sequence[C]], None]) -> list[str]:
    """Run each, whether those before it were a success or not; why those were not that were none."""
    failed = []
    for configs in several:
        try:
            run(configs)
        except UnsuccessfulError as error:
            failed.append(str(error))
    return failed


def compositions(config: DictConfig, experiments: Sequence[str]) -> Iterator[DictConfig]:
    """The configuration of each experiment, or the only one; with the device's own preset where that is to be
    chosen."""
    given = list(HydraConfig.get().overrides.task)
    yield with_preset(config, given)
    for name in experiments[1:]:
        others = [word for word in given if not word.startswith(f"{EXPERIMENT}=")]
        words = [f"{EXPERIMENT}='{name}'", *others]
        yield with_preset(_composed(words), words)


def with_preset(config: DictConfig, words: Sequence[str]) -> DictConfig:
    """The same configuration with preset ``auto`` replaced by the one for the device."""
    if "preset" not in config or config.preset.name != "auto":
        return config
    given = config.device
    wanted = [str(name) for name in (given if isinstance(given, ListConfig) else as_list(given) or ())]
    if not wanted:
        raise UserError("device: is empty; write a value or a list of values.")
    chosen = config.preset[kind_of(wanted, config.get("cluster"))]
    return _composed([*(word for word in words if not word.startswith("preset=")), f"preset={chosen}"])


def kind_of(wanted: Sequence[str], cluster: str | None) -> str:
    """The kind of device that ``device=`` means: on a cluster GPUs, unless it is the word for CPUs. Raises
    UserError as ``device.resolve_all`` does."""
    if cluster is not None:
        return "cpu" if list(wanted) == ["cpu"] else "cuda"
    return device.resolve_all(wanted)[0].kind


def _composed(words: Sequence[str]) -> DictConfig:
    """The configuration of this command with other words."""
    return _without_hydra(_with_hydra(str(HydraConfig.get().job.config_name), words))


def _with_hydra(name: str, words: Sequence[str]) -> DictConfig:
    hydra_instance = GlobalHydra.instance().hydra
    assert hydra_instance is not None, "a stage runs inside Hydra"
    return hydra_instance.compose_config(config_name=name, overrides=list(words), run_mode=RunMode.RUN)


def _without_hydra(composed: DictConfig) -> DictConfig:
    """What a command's own files and words say, without Hydra's settings."""
    with_hydra = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(with_hydra, dict)
    with_hydra.pop("hydra", None)
    return OmegaConf.create(with_hydra)


def made_of(schema: type[C], config: DictConfig, line: CommandLine) -> list[C]:
    """The checked options of a composition, for each of its kernels. Raises UserError."""
    config = with_chosen(config)
    if OmegaConf.is_missing(config, "kernel"):
        raise UserError(f"kernel is missing: write kernel=NAME with one of {', '.join(loading.names())}.")
    made = [checked(schema, one, line.tracking_uri) for one in of_each_kernel(schema, config)]
    for one in made:
        check_names(one)
        check_timer(one)
    return made


def of_each_kernel(schema: type[Record], config: DictConfig) -> list[DictConfig]:
    """The configuration once for each of its kernels, where the command's options name one."""
    names, field = config.get("kernel"), schema.model_fields.get("kernel")
    # A command without kernels says so itself, and one that takes a list of them gets it.
    takes_one = field is not None and str in (field.annotation, *get_args(field.annotation))
    if not isinstance(names, ListConfig) or not takes_one:
        return [config]
    if not names:
        raise UserError("kernel: is empty; write a value or a list of values.")
    rest = {name: config._get_node(name) for name in config}
    return [OmegaConf.create({**rest, "kernel": name}) for name in dict.fromkeys(names)]


def for_each(configs: Sequence[C], do: Callable[[C], None], where: Path, at_once: int = 1) -> None:
    """Do something for each kernel, whatever becomes of the others, and say of several where it lies; of
    several so many at a time, in processes of their own. Raises UserError with what each said that failed."""
    if len(configs) == 1:
        do(configs[0])
        return
    found = forked.failures(configs, do, at_once) if at_once > 1 else _failures(configs, do)
    failed = [f"{config.kernel}: {why}" for config, why in found]  # type: ignore[attr-defined]  # they have
    if failed:
        raise UserError("\n".join(failed))
    console.print(f"{len(configs)} kernels: {where}.", highlight=False, soft_wrap=True)


def _failures(configs: Sequence[C], do: Callable[[C], None]) -> Iterator[tuple[C, str]]:
    for config in configs:
        try:
            do(config)
        except UserError as error:
            yield config, str(error)


def check_names(config: Record) -> None:
    """Raises UserError for a kernel that is not there, and for a pin that neither the command nor the kernel
    knows the name of."""
    pins = getattr(config, PIN, {})
    if not isinstance(config, KernelOptions) or (config.kernel is None and not pins):
        return
    if config.kernel is None:
        options = [name for name in type(config).model_fields if name != PIN]
        raise UserError(f"{unknown('option', next(iter(pins)), options)} Names of a kernel need kernel=NAME.")
    entry = config.entry
    for name in pins:
        if name not in plan.names(entry):
            raise plan.unknown_name(entry, name, type(config).model_fields)


def check_timer(config: Record) -> None:
    """Raises UserError for a GPU's timer on a CPU."""
    timing, wanted = getattr(config, "timing", None), getattr(config, "device", None)
    if timing is None or wanted is None or timing.timer == "auto":
        return
    if kind_of(as_list(wanted), getattr(config, "cluster", None)) == "cpu":
        raise UserError(
            f"timing.timer={timing.timer} needs a GPU: a CPU is timed by the host's clock alone; "
            "leave timing.timer out."
        )


def with_chosen(config: DictConfig) -> DictConfig:
    """The configuration with what was written under ``CHOSEN`` in its place."""
    chosen = OmegaConf.to_container(config.get(CHOSEN) or OmegaConf.create())
    rest = {name: config._get_node(name) for name in config if name != CHOSEN}
    return OmegaConf.create({**rest, **dict(chosen if isinstance(chosen, dict) else {})})


def checked(schema: type[C], config: DictConfig, tracking_uri: str | None = None) -> C:
    """The configuration as a typed record, with what was written as ``tracking.uri=``. Raises UserError that
    names every wrong option."""
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    if tracking_uri is not None:
        if "tracking" not in schema.model_fields:
            raise unknown("option", TRACKING_URI, options(schema))
        values["tracking"]["uri"] = None if tracking_uri == "null" else tracking_uri
    return validated(schema, values)
