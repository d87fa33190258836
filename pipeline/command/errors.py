"""Turn a mistake on a command line into one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.credentials import hidden
from kernel_pipeline.records.fields import visible_lines
from pipeline.command.words import CHOSEN, CONF, PIN
from pipeline.points.catalog import Options

C = TypeVar("C", bound=Options)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """Print an error without the passwords of the command line and the environment, and exit."""
    print(f"error: {visible_lines(hidden(sentence))}", file=sys.stderr)
    sys.exit(code)


def validated(schema: type[C], values: Any) -> C:
    """Check options against a schema. Raises UserError that names every wrong option."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        sentences = dict.fromkeys(_invalid(problem, schema) for problem in error.errors())
        raise UserError(" ".join(sentences)) from error


def _invalid(problem: Any, schema: type[Options]) -> str:
    """Return the sentence for one of pydantic's errors."""
    path = [part for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if path[0] == PIN and len(path) > 1:
        name = path[1]
        if problem["type"] != "value_error":
            return f"{name}: write a value or a list of values, not {problem['input']!r}."
    if problem["type"] == "extra_forbidden":
        return str(unknown("option", name, options(schema, path[:-1])))
    if problem["type"] == "missing":
        return f"{name} was removed by ~{path[0]}; leave ~{path[0]} out."
    if problem["type"] == "value_error":
        text = str(problem["ctx"]["error"])
    else:
        text = f"{problem['msg'][0].lower()}{problem['msg'][1:]}, not {problem['input']!r}"
    return f"{name}: {text.rstrip('.')}."


def options(schema: type[Options], path: Sequence[str] = ()) -> list[str]:
    """Return the options of a group of the schema, as they are written on the command line."""
    model: Any = schema
    for part in (*path, ""):
        if not (isinstance(model, type) and issubclass(model, Options)):
            return []
        if part:
            field = model.model_fields.get(part)
            model = field.annotation if field else None
    return [".".join([*path, name]) for name in model.model_fields]


def explain(error: Exception, schema: type[Options], written: Mapping[str, str]) -> str:
    """Return the sentence for an error of Hydra's. ``written`` maps each word that Hydra got to the user's
    word."""
    # Imported here because --help needs no Hydra, whose import takes a third of a second.
    import yaml
    from hydra.errors import MissingConfigException, OverrideParseException

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"can't read {mark.name}, line {mark.line + 1}: {error.problem}."
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return str(unknown(group, name, sorted(error.options)))
    if isinstance(error, OverrideParseException):
        word = written.get(str(error.override), _as_written(str(error.override)))
        return f"can't read '{word}': write OPTION=VALUE or OPTION=[VALUE,VALUE]."
    return _from_text(_as_written(str(error)), schema)


def _from_text(text: str, schema: type[Options]) -> str:
    """Return the sentence for an error of Hydra's that only its text identifies."""
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)=(.+)'", text):
        name, value = match.groups()
        value = value.replace("'", "") if (CONF / name).is_dir() else value
        return (
            f"{name}={value} is several values: write one, or -m {name}={value} to run the command once for "
            "each."
        )
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
    """Return Hydra's text with the user's words in place of those that Hydra got."""
    return re.sub(rf"(?:\+\+|(?<=full_key: ))(?:{PIN}|{CHOSEN})\.(?=\w)", "", text)
