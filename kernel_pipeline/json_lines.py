"""Files of JSON Lines: a record a line, appended by processes that may be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from .files import content, write_atomically
from .records.base import Record, ValidationError

T = TypeVar("T")

Refused = Callable[[int, bytes, ValidationError], None]
"""Gets the number of a line that is no record, the line, and why."""


def numbered(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers from 1."""
    return ((number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip())


def read(
    path: Path,
    parse: Callable[[bytes], T],
    refused: Refused,
    lines: Iterable[tuple[int, bytes]] | None = None,
) -> list[T]:
    """The records of a file, or of some of its ``lines``, in their order; none if there is no file.

    Raises UserError for a file that can't be read.
    """
    found = []
    for number, line in numbered(content(path)) if lines is None else lines:
        try:
            found.append(parse(line))
        except ValidationError as error:
            refused(number, line, error)
    return found


def warning(path: Path, warn: Callable[[str], None], sentence: str) -> Refused:
    """Warns of each line that is no record: ``sentence`` follows the file and the line's number."""
    return lambda number, line, error: warn(f"{path}:{number} {sentence}")


def write(path: Path, rows: Iterable[Record]) -> None:
    """Replace a file of records atomically. Raises UserError when it can't be written."""
    write_atomically(path, b"".join(row.line() for row in rows))


def is_object(line: bytes) -> bool:
    """Whether a line is a JSON object, of any kind."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
