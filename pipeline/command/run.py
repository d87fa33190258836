"""A command line from its words to its end: composed by Hydra, checked, run, and every mistake one sentence.

Names that Hydra does not know are a kernel's own dimensions and parameters: ``block_size=1024`` goes through
Hydra as ``pin.block_size``, and the kernel says whether it has it. Hydra never sees ``tracking.uri=``: it may
hold a password, of any letters, and Hydra writes the overrides of a multirun to a file.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, get_args

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

import kernels
from pipeline import ROOT, UserError, unknown
from pipeline.command import explanation
from pipeline.command.options import AsWritten, KernelOptions, as_list
from pipeline.machine import device
from pipeline.points import plan
from pipeline.points.frozen import Record
from pipeline.reporting import terminal
from pipeline.store.credentials import hidden

CONF = ROOT / "conf"

CHOSEN = "chosen"
"""Where a kernel's name passes through Hydra."""

TRACKING_URI = "tracking.uri"

PIN = "pin"
"""Where a kernel's own dimensions and parameters do."""

console = terminal.Terminal()
"""Where a command talks to the user: progress, tables, the closing line."""


C = TypeVar("C", bound=Record)


class Stopped(KeyboardInterrupt):
    """A signal that ends a stage as Ctrl-C does: what it measured is kept and shown."""

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
    the options for each kernel that ``kernel=a,b`` names.

    Exits with 0, with 2 after a mistake of the user (one sentence on stderr, no traceback), and with 128
    and its number after a signal: 130 after Ctrl-C, 143 when a scheduler or a container ends it.
    """
    # Hydra then raises what it would print, so that the words are ours.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    if {"--help", "-h"} & set(sys.argv[1:]):
        show_help(name, sys.argv[1:])
    written = sys.argv[1:]
    try:
        tracking_uri, words = without_tracking_uri(written)
    except UserError as error:
        fail(str(error))
    sys.argv[1:] = for_hydra(words, schema)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one
            signal.signal(number, _stop)

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)
    def job(config: DictConfig) -> None:
        sys.argv[1:] = written  # what a row says of its command
        try:
            config = with_chosen(with_preset(config))
            if OmegaConf.is_missing(config, "kernel"):
                raise UserError(
                    f"kernel is missing: write kernel=NAME with one of {', '.join(kernels.names())}."
                )
            made = [checked(schema, one, tracking_uri) for one in of_each_kernel(schema, config)]
            for one in made:
                check_names(one)
            run(made)
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


def for_each(configs: Sequence[C], do: Callable[[C], None], where: Path) -> None:
    """Do something for each kernel, whatever becomes of the others, and say of several where it lies. Raises
    UserError with what each said that failed."""
    failed = []
    for config in configs:
        try:
            do(config)
        except UserError as error:
            if len(configs) == 1:
                raise
            failed.append(f"{config.kernel}: {error}")  # type: ignore[attr-defined]  # several have names
    if failed:
        raise UserError("\n".join(failed))
    if len(configs) > 1:
        console.print(f"{len(configs)} kernels: {where}.", highlight=False, soft_wrap=True)


def without_tracking_uri(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of ``tracking.uri=``, taken as they are written, and the other words. Raises UserError for
    ``tracking=ADDRESS``."""
    found, others = [], []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.lstrip("+~") == TRACKING_URI:
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found.append(value[1:-1] if quoted else value)
        elif equals and name.lstrip("+~") == "tracking" and not re.fullmatch(r"[\w,]*", value):
            raise UserError(
                f"tracking= takes local, server or none, not an address; write {TRACKING_URI}=ADDRESS."
            )
        else:
            others.append(word)
    return found, others


def for_hydra(words: Sequence[str], schema: type[Record]) -> list[str]:
    """The words of a command line as Hydra can take them.

    What is no option of the command is a pin, where the command takes pins. And ``kernel=`` is written under
    ``CHOSEN``: Hydra would take it for a file of conf/kernel/, and have none for a folder outside of the
    repository.
    """
    literal = {
        field.alias or name
        for name, field in schema.model_fields.items()
        if any(isinstance(mark, AsWritten) for mark in field.metadata)
    }
    is_multirun = bool({"-m", "--multirun"} & set(words))
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name == "kernel":
            found.append(f"++{CHOSEN}.kernel={_quoted(value, is_multirun)}")
        elif equals and name in literal:
            found.append(f"{name}={_literal(value)}")
        elif (
            equals and PIN in schema.model_fields and name.isidentifier() and name not in schema.model_fields
        ):
            found.append(f"++{PIN}.{name}={value}")
        else:
            found.append(word)
    return found


def check_names(config: Record) -> None:
    """Raises UserError for a kernel that is not there, and for a pin that neither the command nor the kernel
    knows the name of."""
    pins = getattr(config, PIN, {})
    if not isinstance(config, KernelOptions) or (config.kernel is None and not pins):
        return
    entry = config.entry
    for name in pins:
        if name not in plan.names(entry):
            raise plan.unknown_name(entry, name, type(config).model_fields)


def _quoted(value: str, is_multirun: bool) -> str:
    """Names and paths as Hydra's grammar takes them: one, a list, or for a multirun several."""
    bare = value.removeprefix("[").removesuffix("]")
    each = [f"'{one}'" if "/" in one and "'" not in one else one for one in bare.split(",")]
    is_list = bare != value or (len(each) > 1 and not is_multirun)
    return f"[{','.join(each)}]" if is_list else ",".join(each)


def _literal(value: str) -> str:
    """A text as Hydra's grammar takes it, unless it is null or in quotes already."""
    if value == "null" or (len(value) > 1 and value[0] == value[-1] and value[0] in "'\""):
        return value
    # In quotes a backslash escapes only where a quote follows.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", r"\'"), value)
    return f"'{escaped}'"


def with_chosen(config: DictConfig) -> DictConfig:
    """The configuration with what was written under ``CHOSEN`` in its place."""
    chosen = OmegaConf.to_container(config.get(CHOSEN) or OmegaConf.create())
    rest = {name: config._get_node(name) for name in config if name != CHOSEN}
    return OmegaConf.create({**rest, **dict(chosen if isinstance(chosen, dict) else {})})


def show_help(name: str, words: Sequence[str]) -> NoReturn:
    """Print what the command does, its options and, with ``kernel=NAME`` among the words, what the kernel
    takes."""
    chosen = next((word.removeprefix("kernel=") for word in words if word.startswith("kernel=")), None)
    try:
        text = explanation.of_command(name, CONF / f"{name}.yaml", chosen)
    except UserError as error:
        fail(str(error))
    console.print(text, highlight=False, soft_wrap=True, markup=False)
    sys.exit(0)


def fail(sentence: str) -> NoReturn:
    """End the command with a sentence, in which no password of the command line or the environment is."""
    given = [word for word in (*sys.orig_argv, *sys.argv) if "://" in word]
    uris = [word.partition("=")[2] if re.match(r"[\w.+~]*=", word) else word for word in given]
    print(f"error: {terminal.lines(hidden(sentence, uris))}", file=sys.stderr)
    sys.exit(2)


def with_preset(config: DictConfig) -> DictConfig:
    """The same configuration with preset ``auto`` replaced by the one for the device."""
    if "preset" not in config or config.preset.name != "auto":
        return config
    wanted = [str(name) for name in as_list(config.device) or ()]
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


def checked(schema: type[C], config: DictConfig, tracking_uri: Sequence[str] = ()) -> C:
    """The configuration as a typed record, with what ``without_tracking_uri`` found. Raises UserError that
    names every wrong option."""
    values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    if tracking_uri:
        if "tracking" not in schema.model_fields:
            raise unknown("option", TRACKING_URI, options(schema))
        values["tracking"]["uri"] = None if tracking_uri[-1] == "null" else tracking_uri[-1]
    return validated(schema, values)


def validated(schema: type[C], values: Any) -> C:
    """Options as a typed record. Raises UserError that names every wrong one."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        sentences = dict.fromkeys(_sentence(problem, schema) for problem in error.errors())
        raise UserError(" ".join(sentences)) from error


def _sentence(problem: Any, schema: type[Record]) -> str:
    path = [part for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if path[0] == PIN and len(path) > 1:
        name = path[1]
        if problem["type"] != "value_error":
            return f"{name}: write a value or a list of values, not {problem['input']!r}."
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
    return [".".join([*path, field.alias or name]) for name, field in model.model_fields.items()]


def explain(error: Exception, schema: type[Record]) -> str:
    """What an error of Hydra's means for the user, as one sentence."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"can't read {mark.name}, line {mark.line + 1}: {error.problem}."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return str(unknown(group, name, sorted(error.options)))
    if isinstance(error, OverrideParseException):
        return f"can't read '{_as_written(str(error.override))}': write OPTION=VALUE or OPTION=[VALUE,VALUE]."
    return _explain_text(_as_written(str(error)), schema)


def _explain_text(text: str, schema: type[Record]) -> str:
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)=(.+)'", text):
        return _several(match[1], match[2])
    if match := re.search(r"You must specify '([^']+)'", text):
        known = ", ".join(sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE)))
        return f"{match[1]} is missing: write {match[1]}=NAME with one of {known}."
    if match := re.search(r"Could not (?:override|append to) '?([\w.@/-]+)'?", text):
        name = match[1]
        return str(unknown("option", name, options(schema, name.split(".")[:-1]) or options(schema)))
    if match := re.search(r"(.+)\s+full_key: (\S+)", text):
        return f"{match[2]}: {match[1].strip()}."
    return " ".join(text.split())


def _as_written(text: str) -> str:
    """A text of Hydra's with the user's words in place of those that were handed to it."""
    return re.sub(rf"(?:\+\+|(?<=full_key: ))(?:{PIN}|{CHOSEN})\.(?=\w)", "", text)


def _several(name: str, value: str) -> str:
    """What to write in place of several values with commas between them, or of a sweep in Hydra's words."""
    each = f"-m {name}={value} to run the command once for each"
    if name == "kernel" or (CONF / name).is_dir() or "(" in value:
        return f"{name}={value} is several values: write {each}."
    return f"{name}={value} is several values: write {name}=[{value}], or {each}."
