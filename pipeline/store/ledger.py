"""The ledger: the measurements of one kernel on one GPU, one JSON line each.

A line is appended as soon as its point is measured, and is then on the disk, so that a killed sweep loses at
most the point in progress. ``compact`` rewrites the file atomically, sorted, with the newest line of each
point and settings. Processes that share a ledger take turns by a lock file beside it, and none overwrites
another's lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kernel_pipeline import files
from kernel_pipeline.files import locked, write_atomically
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order

from .provenance import RunProvenance, Runs
from .rows import Reader, encode

Slot = tuple[Point, str]

NOT_A_ROW = "is not a measurement (incomplete or edited); skipped, its point counts as new."


def read_rows(path: Path, warn: Callable[[str], None]) -> list[Measurement]:
    """Return every readable measurement of a ledger, in file order; none if there is no file.

    A line that is torn (a crash or a full disk while it was written) or foreign is skipped with a sentence to
    ``warn``. Raises UserError for a file that can't be read.
    """
    return _read(path, warn)[0]


def _read(path: Path, warn: Callable[[str], None]) -> tuple[list[Measurement], list[bytes]]:
    """Return the measurements of a ledger, and its foreign lines: whole JSON objects that this version does
    not read, or whose run is not known."""
    foreign: list[bytes] = []
    return Reader(path, Measurement).every(warn, NOT_A_ROW, foreign), foreign


class Ledger:
    """An open ledger that a sweep appends to."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.warn = warn
        self._rows: dict[Slot, Measurement] = {row.slot: row for row in read_rows(path, warn)}
        self._appended: dict[Slot, Measurement] = {}
        self._runs = Runs(path)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[Measurement]:
        """Return the newest measurement of each point and settings, sorted."""
        return _sorted(self._rows.values())

    def get(self, point: Point, settings: str) -> Measurement | None:
        """Return the newest measurement of the point with these settings, None if there is none."""
        return self._rows.get((point, settings))

    def note(self, run: RunProvenance) -> None:
        """Write a run's line, before the first of its rows. Raises UserError when it can't be written."""
        self._runs.note(run)

    def append(self, row: Measurement) -> None:
        """Append a measurement after the line of its run, and make sure that it is on the disk.

        Raises UserError when the disk is full or the file can't be written; rows appended before stay.
        """
        self._runs.cover(row.origin, row.parts, row.point.kernel)
        files.append(self.path, encode(row))
        self._rows[row.slot] = self._appended[row.slot] = row

    def compact(self, change: Callable[[Measurement], Measurement | None] = lambda row: row) -> None:
        """Rewrite the file atomically: sorted, with the newest line of each point and settings. ``change``
        returns the row to write, or None to drop it.

        Rows that other processes appended meanwhile are kept. Rows that another version of this code wrote
        and this version can't read are kept unchanged. Rows that this process appended are written again if
        the file was removed since. Raises UserError when the file can't be written.
        """
        self._runs.keep()
        with locked(self.path):
            rows, foreign = _read(self.path, lambda sentence: None)
            newest = {row.slot: row for row in rows}
            lost = self._appended.keys() - newest.keys()
            if lost:
                self.warn(
                    f"{len(lost)} rows of this run had disappeared from {self.path}; they are written again."
                )
            newest |= {slot: self._appended[slot] for slot in lost}
            self._rows = {slot: new for slot, row in newest.items() if (new := change(row)) is not None}
            self._appended.clear()
            kept = b"".join(line + b"\n" for line in foreign)
            write_atomically(self.path, b"".join(map(encode, self.rows())) + kept)


def _sorted(rows: Iterable[Measurement]) -> list[Measurement]:
    return sorted(rows, key=lambda row: (order(row.point), row.parts.settings))
