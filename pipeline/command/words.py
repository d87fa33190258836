"""Check the words of a command line, and rewrite them in Hydra's grammar.

Hydra's grammar has no file names with blanks, and its configuration has no names that only a kernel declares.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.fields import visible

from .. import ROOT
from ..points.catalog import Options
from .values import LISTED, AsWritten

CONF = ROOT / "conf"

CHOSEN = "chosen"
"""The group under which a kernel's name passes through Hydra."""

PIN = "pin"
"""The group under which a kernel's own dimensions and parameters pass through Hydra."""

EXPERIMENT = "experiment"

TRACKING_URI = "tracking.uri"

MULTIRUN = {"--multirun", "-m"}
COMPLETION = {"--shell-completion", "-sc"}
CONFIG = {"--cfg", "-c"}
FLAGS = {"--help", "-h"} | MULTIRUN | COMPLETION | CONFIG | {"--resolve"}

LAUNCHER = "hydra/launcher"
"""The option that chooses how a multirun's jobs run: by Hydra on this host, or by a scheduler."""

SCHEDULERS = {"submitit_slurm", "submitit_local"}

BRACKETS = set("[](){}'\"")
"""A value with any of these characters is taken as Hydra's grammar."""


@dataclass(frozen=True)
class CommandLine:
    """A command line. ``given`` maps each word for Hydra to the user's word. Hydra does not get the other
    fields."""

    given: dict[str, str]
    tracking_uri: str | None = None
    experiments: tuple[str, ...] = ()
    launcher: str | None = None


def read(words: Sequence[str], schema: type[Options]) -> CommandLine:
    """Check a command line and rewrite it for Hydra. A shell's completion goes to Hydra unchanged. Raises
    UserError for a mistake."""
    if COMPLETION & set(words):
        return CommandLine({word: word for word in words})
    launcher = launcher_of(words, schema)
    check(words)
    if "cluster" not in schema.model_fields and any(name_of(word) == "cluster" for word in words):
        raise UserError("cluster= is for sweep: leave it out, and run this command on the device's host.")
    removed = (name_of(word) for word in words if word.startswith("~"))
    if name := next((one for one in removed if one.partition(".")[0] in schema.model_fields), None):
        raise UserError(f"{name} can't be removed: leave ~{name} out, or write {name}=VALUE.")
    tracking_uri, rest = without_tracking_uri(words)
    experiments, rest = without_experiments(rest)
    first = [f"{EXPERIMENT}={experiments[0]}"] if experiments else []
    return CommandLine(
        for_hydra([*flags_first(rest), *first], schema), tracking_uri, tuple(experiments), launcher
    )


def positional(words: Sequence[str], *names: str) -> list[str]:
    """Put ``NAME=`` before words that stand alone: the first name before the first such word, and so on."""
    left, lone = list(names), list(alone(words))
    return [f"{left.pop(0)}={word}" if left and word in lone else word for word in words]


def alone(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that are neither flags nor options."""
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") and "=" not in word and before not in CONFIG:
            yield word


def flags_first(words: Sequence[str]) -> list[str]:
    """Sort flags before options: Hydra accepts no other order."""
    is_flag = [
        word.startswith("-") or before in CONFIG for before, word in zip(["", *words], words, strict=False)
    ]
    flags = [word for word, is_one in zip(words, is_flag, strict=True) if is_one]
    return flags + [word for word, is_one in zip(words, is_flag, strict=True) if not is_one]


def name_of(word: str) -> str:
    """Return the option that a word sets or removes."""
    return word.partition("=")[0].lstrip("+~")


def check(words: Sequence[str]) -> None:
    """Check each word. Raises UserError for an unknown flag, a word that sets no option, and an option that
    is given twice."""
    given: dict[str, str] = {}
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if visible(word) != word:
            raise UserError(f"can't read '{visible(word)}': an argument must not contain control characters.")
        if before in CONFIG:
            continue
        if word in CONFIG and after not in ("job", "hydra", "all"):
            raise UserError(f"{word} shows the configuration: write {word} job.")
        if word.startswith("-"):
            if word not in FLAGS:
                raise UserError(
                    f"unknown flag '{word}': options are written NAME=VALUE, and --help lists them. "
                    f"Known flags: {', '.join(sorted(FLAGS))}."
                )
            continue
        name = name_of(word)
        if re.match(r"hydra\b", name) and not (is_multirun(words) and re.match(r"hydra[/.]launcher\b", name)):
            raise UserError(f"{name} is a setting of Hydra's own, which no command here takes; leave it out.")
        if re.match(rf"{PIN}\b", name) and "=" in word:
            raise UserError(f"can't read '{word}': write the kernel's own names as options, as in size=4096.")
        if not name:
            raise UserError(f"can't read '{word}': write OPTION=VALUE or OPTION=[VALUE,VALUE].")
        if name in given:
            raise UserError(f"{name} is given twice, as {given[name]} and as {word}; write it once.")
        given[name] = word


def launcher_of(words: Sequence[str], schema: type[Options]) -> str | None:
    """Return the scheduler of a multirun's jobs; None if they run on this host. Raises UserError for an
    unknown or missing launcher, and for options that a scheduler's job can't have."""
    found = [word.partition("=")[2] for word in words if name_of(word) == LAUNCHER]
    if not found:
        if given := next((word for word in words if name_of(word).startswith("hydra.launcher")), None):
            raise UserError(f"{given} configures a launcher: write -m {LAUNCHER}=submitit_slurm, too.")
        return None
    if found[0] not in SCHEDULERS:
        raise unknown(LAUNCHER, found[0], sorted(SCHEDULERS))
    if "retry" not in schema.model_fields:  # only a sweep continues where a requeued job ended
        raise UserError(f"{LAUNCHER}= is for sweeps: run this command on the device's host.")
    if not is_multirun(words):
        raise UserError(f"{LAUNCHER}={found[0]} runs the jobs of a multirun: write -m {LAUNCHER}={found[0]}.")
    if any(name_of(word) == TRACKING_URI for word in words):
        raise UserError(
            f"{TRACKING_URI}= would be written into the files of the jobs: set MLFLOW_TRACKING_URI instead."
        )
    if not _has_submitit():
        raise UserError(
            f"{LAUNCHER}={found[0]} needs hydra-submitit-launcher, which is not installed: run "
            "python locks/install.py slurm with the Python of this command."
        )
    return found[0]


def _has_submitit() -> bool:
    plugins = "hydra_plugins"
    return all(importlib.util.find_spec(name) for name in (plugins, f"{plugins}.hydra_submitit_launcher"))


def is_multirun(words: Sequence[str]) -> bool:
    """Whether Hydra runs the command once for each of several values."""
    return bool(MULTIRUN & set(words))


def without_tracking_uri(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of ``tracking.uri=`` as it is written, and the other words. Raises UserError for
    ``tracking=ADDRESS``."""
    found, others = None, []
    for word in words:
        _, equals, value = word.partition("=")
        if equals and name_of(word) == TRACKING_URI:
            found = value[1:-1] if _is_quoted(value) else value
        elif equals and name_of(word) == "tracking" and not re.fullmatch(r"[\w,]*", value):
            raise UserError(
                f"tracking= takes local, server or none, not an address; write {TRACKING_URI}=ADDRESS."
            )
        else:
            others.append(word)
    return found, others


def without_experiments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of ``experiment=a,b``, which run one after the other, and the other words. In a
    multirun Hydra itself takes the names."""
    if is_multirun(words):
        return [], list(words)
    found, others = [], []
    for word in words:
        name, _, value = word.partition("=")
        if name == EXPERIMENT and value != "null":
            found += value.removeprefix("[").removesuffix("]").split(",")
        else:
            others.append(word)
    return list(dict.fromkeys(found)), others


def for_hydra(words: Sequence[str], schema: type[Options]) -> dict[str, str]:
    """Map each word for Hydra to the user's word.

    A name that is not an option of the command becomes a pin, if the command takes pins. ``kernel=`` goes
    under ``CHOSEN``: Hydra would look for a file of conf/kernel/, which a kernel outside of the repository
    does not have.
    """
    several = is_multirun(words)
    return {_for_hydra(word, schema, several): word for word in words}


def _for_hydra(word: str, schema: type[Options], several: bool) -> str:
    name, equals, value = word.partition("=")
    if not equals or word.startswith(("-", "~")):
        return word
    if name == "kernel":
        return f"++{CHOSEN}.kernel={_names(value, several)}"
    if (CONF / name).is_dir():
        return f"{name}={_choices(name, value)}"
    fields = schema.model_fields
    if name in fields:
        return f"{name}={_of_field(fields[name], value, several)}"
    if PIN in fields and name.isidentifier():
        return f"++{PIN}.{name}={_value(value, not several)}"
    return f"{name}={_value(value, False)}"


def _of_field(field: FieldInfo, value: str, several: bool) -> str:
    if any(isinstance(mark, AsWritten) for mark in field.metadata) or _is_path(field.annotation):
        return _literal(value)
    return _value(value, LISTED in field.metadata and not several)


def _is_path(annotation: Any) -> bool:
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return any(map(_is_path, get_args(annotation)))
    return annotation is Path


def _value(value: str, is_list: bool) -> str:
    """Write a value in Hydra's grammar: add a list's missing brackets, and quote a text that is not ASCII."""
    if not value.isascii() and not BRACKETS & set(value):
        return ",".join(map(_literal, value.split(",")))
    return f"[{value}]" if is_list and "," in value and not BRACKETS & set(value) else value


def _names(value: str, several: bool) -> str:
    """Write names and paths in Hydra's grammar: one, a list, or several values for a multirun."""
    bare = value.removeprefix("[").removesuffix("]")
    each = [one if re.fullmatch(r"\w*", one, re.ASCII) else _literal(one) for one in bare.split(",")]
    is_list = bare != value or (len(each) > 1 and not several)
    return f"[{','.join(each)}]" if is_list else ",".join(each)


def _choices(group: str, value: str) -> str:
    """Write the names of files in a folder of conf/ in Hydra's grammar. Raises UserError for an impossible
    name."""
    if not re.fullmatch(r"[\w,./-]*", value, re.ASCII):
        raise unknown(group, value, choices(group))
    return ",".join(f"'{name}'" for name in value.split(","))


def choices(group: str) -> list[str]:
    """Return the names of the files in a folder of conf/, as a command line takes them."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _literal(value: str) -> str:
    """Quote a text for Hydra's grammar, unless it is null or in quotes already."""
    if value == "null" or _is_quoted(value):
        return value
    # Inside quotes a backslash escapes only before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", r"\'"), value)
    return f"'{escaped}'"


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
