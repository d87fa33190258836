"""JSON Lines files with one record per line, appended by processes that may be killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from .files import content, write_atomically
from .records.base import Record, ValidationError

T = TypeVar("T")

Refused = Callable[[int, bytes, ValidationError], None]
"""A callback for an invalid line: it takes the line's number, the line, and the error."""


def numbered(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines of a file with their numbers, from 1."""
    return ((number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip())


def read(
    path: Path,
    parse: Callable[[bytes], T],
    refused: Refused,
    lines: Iterable[tuple[int, bytes]] | None = None,
) -> list[T]:
    """Return the records of a file, or of the given ``lines``, in order; none if there is no file. Pass each
    invalid line to ``refused``.

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
    """Return a callback that warns of an invalid line: the file, the line's number, then ``sentence``."""
    return lambda number, line, error: warn(f"{path}:{number} {sentence}")


def write(path: Path, rows: Iterable[Record]) -> None:
    """Replace a file of records atomically. Raises UserError if it can't be written."""
    write_atomically(path, b"".join(row.line() for row in rows))


def is_object(line: bytes) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
