"""Every mistake on a command line as one sentence: what is wrong, and what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from pipeline import UserError, unknown
from pipeline.command.words import PIN
from pipeline.points.frozen import Record
from pipeline.points.limits import visible_lines
from pipeline.store.credentials import hidden

C = TypeVar("C", bound=Record)


def fail(sentence: str, code: int = 2) -> NoReturn:
    """End the command with a sentence, in which no password of the command line or the environment is."""
    print(f"error: {visible_lines(hidden(sentence))}", file=sys.stderr)
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
