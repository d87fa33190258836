"""Records of ad-hoc sweeps, one file per sweep: ``outputs/runs/<id>.jsonl``.

A ledger holds the newest row of each point, so a later sweep replaces the rows of an earlier one. A record
keeps the rows of one sweep: its first line describes the sweep and the machine, each further line is a row as
in the ledger. It is written during the sweep, and never changes after that.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Self

from msgspec import Meta, field

from kernel_pipeline import files, json_lines
from kernel_pipeline.files import LOCAL, write_atomically
from kernel_pipeline.records.base import Record, ValidationError
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.fields import Count, Name
from kernel_pipeline.records.measurement import Measurement, Parts

from . import ledger, results
from .provenance import RunProvenance, run_of
from .rows import Reader, UnknownRunError, encode


class Heading(Record):
    """The first line of a record. ``provenance`` is the data that its rows share.

    ``changed`` counts the points by the reason why they were measured: ``new`` points, points whose older row
    differs in a part of its key (``source``, ``environment``, ...), and points measured ``again``. It is
    empty for a sweep that was killed.
    """

    run: Annotated[str, Meta(pattern=r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}\Z")]
    kernel: Name
    environment: Environment
    ceilings: Ceilings | None
    changed: dict[Name, Count] = field(default_factory=dict)
    provenance: RunProvenance | None = None


TORN = "not a measurement (incomplete or edited)"

MEASURED_HERE = LOCAL / "runs"
"""The file with the ids of the runs that measured for the repository's results in this checkout, a line
each."""


def note(run: str) -> None:
    """Note that a run for the repository's results measured in this checkout. Raises UserError when the note
    can't be written."""
    files.append(MEASURED_HERE, f"{run}\n".encode())


def measured_here() -> frozenset[str]:
    """Return the ids that ``note`` has written."""
    return frozenset(files.content(MEASURED_HERE).decode().split())


def folder_in(output: Path) -> Path:
    """Return the folder with the records of the sweeps into ``output``."""
    return output / "runs"


class Recorder:
    """Writes the record of a running sweep. It is a context manager, and creates the file with the first row.

    While it is open, no other process treats the record as finished.
    """

    def __init__(self, output: Path, heading: Heading) -> None:
        self.path = folder_in(output) / f"{heading.run}.jsonl"
        self._heading = heading
        self._rows: dict[ledger.Slot, Measurement] = {}
        self._changed: Counter[str] = Counter()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def append(self, row: Measurement, before: Parts | None) -> None:
        """Append a row, and make sure that it is on the disk. ``before`` are the parts of the key of the
        ledger's older row, None if there was none.

        Raises UserError when the disk is full or the file can't be written.
        """
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("xb")
                if self._heading.provenance is None:
                    described = run_of(row.origin, row.parts, row.point.kernel)
                    self._heading = self._heading.replace(provenance=described)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                self._file.write(encoded(self._heading))
            self._file.write(encode(row))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise files.not_appended(self.path, error) from error
        if row.slot not in self._rows:
            parts = ["new"] if before is None else before.differences(row.parts) or ["again"]
            self._changed.update(parts)
        self._rows[row.slot] = row

    def finish(self, settled: Callable[[Measurement], Measurement]) -> None:
        """Write the final record: each point's last row, completed by ``settled`` with findings about the
        whole sweep, and the counts of points by the reason why they were measured. Without a row there is no
        file. Raises UserError when it can't be written; the file then stays as it was."""
        if not self._rows:
            return
        self._heading = self._heading.replace(changed=dict(self._changed))
        rows = map(settled, self._rows.values())
        write_atomically(self.path, encoded(self._heading, rows))
        self._rows.clear()  # the sweep's table reads the ledger


def encoded(heading: Heading, rows: Iterable[Measurement] = ()) -> bytes:
    """Return the content of a record's file."""
    return heading.line() + b"".join(map(encode, rows))


def records(folder: Path, warn: Callable[[str], None]) -> dict[Path, Heading]:
    """Return the headings of the finished records of a folder by file, the oldest first; killed sweeps are
    included.

    A record that is still being written is left out. A file that is not a record is skipped with a sentence
    to ``warn``.
    """
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        if not path.is_file() or not results.inside(folder, path):
            warn(f"{path} is not a file in {folder}; skipped.")
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            line = file.readline()
        try:
            heading = Heading.from_json(line)
        except ValidationError:
            warn(f"{path} does not begin with the heading of a sweep's record; skipped.")
            continue
        if heading.run != path.stem:
            warn(f"{path} names another run, {heading.run}, in its first line; skipped.")
            continue
        found[path] = heading
    return found


def rows(path: Path, heading: Heading, warn: Callable[[str], None]) -> Sequence[Measurement]:
    """Return the rows of a record. A row that is torn, or of another kernel, machine or sweep than the
    record, is skipped with a sentence to ``warn``."""
    mine = heading.run, heading.kernel, heading.environment.gpu
    of_run = {} if heading.provenance is None else {heading.run: heading.provenance}
    reader = Reader(path, Measurement, of_run)

    def own(line: bytes) -> Measurement:
        row: Measurement = reader.row(line)
        if (row.origin.run, row.point.kernel, row.origin.gpu) != mine:
            raise UnknownRunError(row.origin.run)
        return row

    def refused(number: int, line: bytes, error: ValidationError) -> None:
        is_other = isinstance(error, UnknownRunError)
        why = "of another sweep, kernel or machine than its file" if is_other else TORN
        warn(f"{path}:{number} is {why}; skipped.")

    _, *lines = json_lines.numbered(path.read_bytes())
    return json_lines.read(path, own, refused, lines)
