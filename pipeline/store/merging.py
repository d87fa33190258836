"""Merge rows of another clone into this clone's: find new, newer and contradicting rows.

Files from elsewhere are read as data, and each row is checked as a record before it is taken. No row is
copied unchanged: each is encoded again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kernel_pipeline import json_lines
from kernel_pipeline.files import content, locked, write_atomically
from kernel_pipeline.records.base import Record, ValidationError

from . import results
from .rows import Reader, UnknownRunError

Warn = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """Files of rows, one JSON line each.

    pattern:
        The glob pattern of the files below a folder of results.
    model:
        The record type of a line.
    slot:
        Returns the identity of a row, or of a group of rows, in a file.
    is_of:
        Whether a row belongs in the file.
    encode:
        Returns a row's line.
    names_runs:
        Whether rows name runs, which lie in a file of their own.
    when:
        Returns when a row was measured. None if rows have no time, so that the rows here stay.
    together:
        Whether the rows of a slot are a group, taken or left as a whole.
    order:
        The sort key of the rows in a file; None to append new rows at the end.
    differs:
        Describes how two rows of a slot differ.
    """

    pattern: str
    model: type[Record]
    slot: Callable[[Any], Hashable]
    is_of: Callable[[Any, Path], bool]
    encode: Callable[[Any], bytes]
    names_runs: bool = False
    when: Callable[[Any], datetime] | None = None
    together: bool = False
    order: Callable[[Any], Any] | None = None
    differs: Callable[[Any, Any], str] = lambda ours, theirs: "content"


@dataclass
class Merged:
    """The numbers of a foreign file's slots, by their relation to ours, and its number of ``skipped`` lines.

    ``new`` slots are not here. The ``same`` slots are equal to ours, ``newer`` and ``older`` slots differ and
    have a time. ``contradicting`` slots differ, and no time shows which are newer. ``by`` counts the kinds of
    differences.
    """

    path: Path
    new: int = 0
    same: int = 0
    newer: int = 0
    older: int = 0
    contradicting: int = 0
    skipped: int = 0
    by: Counter[str] = field(default_factory=Counter)

    @property
    def taken(self) -> int:
        """The number of slots that change here."""
        return self.new + self.newer


@dataclass(frozen=True)
class _File:
    """The rows of a file by slot, in order within each slot, and the lines that are not such rows."""

    slots: dict[Hashable, list[Any]]
    foreign: list[bytes]


def plain_files(folder: Path, pattern: str, warn: Warn) -> Iterator[Path]:
    """Yield the files of a pattern that lie in a folder from elsewhere. No link is followed, and only files
    with plain names are read; ``warn`` gets a sentence on each that is left out."""
    for path in results.listed(folder, pattern, warn):
        links = [one for one in (path, *path.parents) if one.is_relative_to(folder) and one != folder]
        if any(one.is_symlink() for one in links):
            warn(f"{path} is a link; skipped.")
        else:
            yield path


def merge_rows(kind: Kind, theirs: Path, ours: Path, is_written: bool, warn: Warn) -> Merged:
    """Merge the rows of a file from elsewhere into the file here, and with ``is_written`` write the result
    atomically.

    If both have a row the newer row is kept. Lines here that are not rows stay as they are. Raises UserError
    for a file that can't be read or written.
    """
    found = Merged(ours)

    def is_foreign(sentence: str) -> None:
        found.skipped += 1
        warn(sentence)

    incoming = _read(kind, theirs, ours, is_foreign)
    if not is_written:
        _merge(kind, incoming, _read(kind, ours, ours, None), found)
        return found
    if not incoming.slots:
        return found
    with locked(ours):
        here = _read(kind, ours, ours, None)
        _merge(kind, incoming, here, found)
        if found.taken:
            rows = [row for group in here.slots.values() for row in group]
            if kind.order is not None:
                rows.sort(key=kind.order)
            kept = b"".join(line + b"\n" for line in here.foreign)
            write_atomically(ours, b"".join(map(kind.encode, rows)) + kept)
    return found


def _read(kind: Kind, path: Path, place: Path, warn: Warn | None) -> _File:
    """Return a file's rows. ``warn`` gets a sentence on each line that is not a row or belongs elsewhere."""
    slots: dict[Hashable, list[Any]] = {}
    foreign = []
    reader = Reader(path, kind.model) if kind.names_runs else None
    for number, line in json_lines.numbered(content(path)):
        try:
            row = kind.model.from_json(line) if reader is None else reader.row(line)
        except ValidationError as error:
            foreign.append(line)
            if warn is not None and not isinstance(error, UnknownRunError):
                warn(
                    f"{path}:{number} is not a complete row of this version, or its "
                    "digests are wrong; skipped."
                )
            continue
        if warn is not None and not kind.is_of(row, place):
            warn(f"{path}:{number} belongs to another kernel or machine than the file; skipped.")
            continue
        group = slots.setdefault(kind.slot(row), [])
        if not kind.together:
            group.clear()  # the last line of a slot counts
        group.append(row)
    if reader is not None and warn is not None:
        for sentence in reader.said():
            warn(sentence)
    return _File(slots, foreign)


def _merge(kind: Kind, incoming: _File, here: _File, found: Merged) -> None:
    """Put the slots that are new or newer among the rows here, and count all of them."""
    for slot, theirs in incoming.slots.items():
        ours = here.slots.get(slot)
        if ours is None:
            found.new += 1
            here.slots[slot] = theirs
        elif ours == theirs:
            found.same += 1
        else:
            found.by[kind.differs(ours[-1], theirs[-1])] += 1
            at = None if kind.when is None else (kind.when(ours[-1]), kind.when(theirs[-1]))
            if at is None or at[0] == at[1]:
                found.contradicting += 1
            elif at[1] > at[0]:
                found.newer += 1
                here.slots[slot] = theirs
            else:
                found.older += 1


def newest(kind: Kind, paths: Iterable[Path]) -> datetime | None:
    """Return when the newest row of some files was measured, None without a row."""
    assert kind.when is not None, "only what has a time is newer than another"
    times = [
        kind.when(row)
        for path in paths
        for group in _read(kind, path, path, lambda sentence: None).slots.values()
        for row in group
    ]
    return max(times, default=None)
