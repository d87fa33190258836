"""The ledger: the measurements of one kernel on one GPU, a JSON line each.

A line is appended and flushed as soon as it is measured, so that a killed sweep loses at most the
point it was at. ``compact`` rewrites the file atomically, sorted, with the newest line of each point.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from kernels.point import Point
from pipeline.errors import UserError
from pipeline.measure.record import Measurement


def order(point: Point) -> tuple[str | int, ...]:
    """The order of points in a ledger, a table and a plot."""
    return (
        point.kernel,
        point.provider,
        point.dtype,
        point.size,
        point.rows or 0,
        point.block_size or 0,
        point.num_warps or 0,
        point.num_stages or 0,
    )


def read_rows(path: Path, warn: Callable[[str], None]) -> list[Measurement]:
    """Every readable measurement of a ledger, in file order; none if there is no file.

    A line that is torn (a crash or a full disk while it was written) or foreign is skipped, and
    ``warn`` gets a sentence about it.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(Measurement.from_row(json.loads(line)))
        except (ValueError, TypeError, ValidationError):
            warn(f"{path}:{number} is not a measurement (torn or edited); skipped, its point counts as new.")
    return rows


class Ledger:
    """An open ledger that a sweep appends to."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._rows: dict[Point, Measurement] = {row.point: row for row in read_rows(path, warn)}

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self) -> list[Measurement]:
        """The newest measurement of each point, sorted."""
        return sorted(self._rows.values(), key=lambda row: order(row.point))

    def get(self, point: Point) -> Measurement | None:
        """The newest measurement of the point."""
        return self._rows.get(point)

    def append(self, row: Measurement) -> None:
        """Add one measurement and make sure it is on the disk.

        Raises UserError when the disk is full or the file can't be written; what was appended before stays.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A torn last line must not swallow the new one, so a missing newline is put in first.
            with self.path.open("ab") as file:
                torn = file.tell() > 0 and not self._ends_with_newline()
                file.write(b"\n" * torn + encode(row))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"can't write {self.path}: {error.strerror}. What was measured before is kept; "
                "make room and run the same command again to go on from here."
            ) from error
        self._rows[row.point] = row

    def replace(self, row: Measurement) -> None:
        """Put another row in the place of its point; it is on the disk after the next ``compact``."""
        self._rows[row.point] = row

    def compact(self, keep: Callable[[Measurement], bool] = lambda row: True) -> None:
        """Rewrite the file atomically: sorted, one line a point, only rows for which ``keep`` is true."""
        self._rows = {point: row for point, row in self._rows.items() if keep(row)}
        write_rows(self.path, self.rows())

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() == b"\n"


def encode(row: Measurement) -> bytes:
    """One line of a ledger."""
    return json.dumps(row.row(), separators=(",", ":")).encode() + b"\n"


def write_rows(path: Path, rows: Iterable[Measurement]) -> None:
    """Replace a ledger atomically; an unchanged one is not touched."""
    write_atomically(path, b"".join(encode(row) for row in rows))


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a reader or a crash sees the old or the new, never a part.

    Raises UserError when it can't be written; the old file stays.
    """
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}. The file is as it was.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
