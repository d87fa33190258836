"""Every mistake on a command line as one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import yaml
from hydra.errors import MissingConfigException, OverrideParseException
from pydantic import ValidationError

from pipeline import UserError, unknown
from pipeline.command.words import CHOSEN, CONF, PIN
from pipeline.points.frozen import Record
from pipeline.reporting import terminal
from pipeline.store.credentials import hidden

C = TypeVar("C", bound=Record)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """End the command with a sentence, in which no password of the command line or the environment is."""
    given = [word for word in (*sys.orig_argv, *sys.argv) if "://" in word]
    uris = [word.partition("=")[2] if re.match(r"[\w.+~]*=", word) else word for word in given]
    print(f"error: {terminal.lines(hidden(sentence, uris))}", file=sys.stderr)
    sys.exit(code)


def validated(schema: type[C], values: Any) -> C:
    """Options as a typed record. Raises UserError that names every wrong one."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        sentences = dict.fromkeys(_of_option(problem, schema) for problem in error.errors())
        raise UserError(" ".join(sentences)) from error


def _of_option(problem: Any, schema: type[Record]) -> str:
    path = [part for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if path[0] == PIN and len(path) > 1:
        name = path[1]
        if problem["type"] != "value_error":
            return f"{name}: write a value or a list of values, not {problem['input']!r}."
    if problem["type"] == "extra_forbidden":
        return str(unknown("option", name, options(schema, path[:-1])))
    if problem["type"] == "missing":
        return f"{name} was taken away by ~{path[0]}; leave ~{path[0]} out."
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


def explain(error: Exception, schema: type[Record], written: Mapping[str, str]) -> str:
    """What an error of Hydra's means for the user, as one sentence; ``written`` are the user's words for
    those that Hydra was given."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"can't read {mark.name}, line {mark.line + 1}: {error.problem}."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return str(unknown(group, name, sorted(error.options)))
    if isinstance(error, OverrideParseException):
        word = written.get(str(error.override), _as_written(str(error.override)))
        return f"can't read '{word}': write OPTION=VALUE or OPTION=[VALUE,VALUE]."
    return _of_hydra(_as_written(str(error)), schema)


def _of_hydra(text: str, schema: type[Record]) -> str:
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)=(.+)'", text):
        return _several(match[1], match[2])
    if match := re.search(r"You must specify '([^']+)'", text):
        known = ", ".join(sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE)))
        return f"{match[1]} is missing: write {match[1]}=NAME with one of {known}."
    if match := re.search(r"Could not (?:override|append to|delete)[^']*'?([\w.@/-]+)'?", text):
        name = match[1]
        known_options = options(schema, name.split(".")[:-1]) or options(schema)
        if name in known_options:
            return f"{name} takes no mapping here; write {name}=VALUE."
        return str(unknown("option", name, known_options))
    if match := re.search(r"(.+)\s+full_key: (\S+)", text):
        return f"{match[2]}: {match[1].strip()}."
    return " ".join(text.split())


def _as_written(text: str) -> str:
    """A text of Hydra's with the user's words in place of those that were handed to it."""
    return re.sub(rf"(?:\+\+|(?<=full_key: ))(?:{PIN}|{CHOSEN})\.(?=\w)", "", text)


def _several(name: str, value: str) -> str:
    """What to write in place of several values where one is taken."""
    value = value.replace("'", "") if (CONF / name).is_dir() else value
    return (
        f"{name}={value} is several values: write one, or -m {name}={value} to run the command once for each."
    )
