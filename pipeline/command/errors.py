"""Turn a mistake on a command line into one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.credentials import hidden
from kernel_pipeline.records.fields import visible_lines

from ..points.catalog import Options
from .words import CHOSEN, CONF, PIN

C = TypeVar("C", bound=Options)

NEAR = 0.75
"""The similarity to an option's name, by ``difflib``, from which on a name is taken for a typing error."""


def fail(sentence: str, code: int = 2) -> NoReturn:
    """Print an error without the passwords of the command line and the environment, and exit."""
    print(f"error: {visible_lines(hidden(sentence))}", file=sys.stderr)
    sys.exit(code)


def validated(schema: type[C], values: Any) -> C:
    """Check options against a schema. Raises UserError that names every wrong option."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        found: dict[Any, str] = {}
        for number, problem in enumerate(error.errors()):
            # A pin may have any of several types, and each type has an error.
            place = problem["loc"][:2] if problem["loc"][0] == PIN else number
            found.setdefault(place, _invalid(problem, schema))
        raise UserError(" ".join(dict.fromkeys(found.values()))) from error


def unknown_option(schema: type[Options], names: Iterable[str]) -> UserError | None:
    """Return the error for the first of the names that is nearly an option's name; None if none is.

    Words that Hydra does not know become pins, so such a name may also be meant as a dimension's.
    """
    known = [name for name in options(schema) if name != PIN]
    near = (name for name in names if difflib.get_close_matches(name, known, n=1, cutoff=NEAR))
    return next((unknown("option", name, known) for name in near), None)


def _invalid(problem: Any, schema: type[Options]) -> str:
    """Return the sentence for one of pydantic's errors."""
    path = [part for part in problem["loc"] if isinstance(part, str)]
    name = ".".join(path)
    if path[0] == PIN and len(path) > 1:
        name = path[1]
        if (wrong := unknown_option(schema, [name])) is not None:
            return str(wrong)
        if problem["type"] != "value_error":
            return (
                f"{name}: write a value or a list of values, not {problem['input']!r}, for a dimension or a "
                "parameter; no option has this name, and --help lists the options."
            )
    if problem["type"] == "extra_forbidden":
        return str(unknown("option", name, options(schema, path[:-1])))
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
    """Return Hydra's text with the user's words in place of the words that Hydra got."""
    return re.sub(rf"(?:\+\+|(?<=full_key: ))(?:{PIN}|{CHOSEN})\.(?=\w)", "", text)
