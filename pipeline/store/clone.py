"""Merge the results of another clone into this clone's.

All files are read as data: each row must be complete, of this version, and match its digests. It is then
encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kernel_pipeline import files
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.base import Record, ValidationError
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import order

from . import comparisons, evidence, held_out, plain_yaml, provenance, results, runs
from .comparisons import Comparison
from .finals import Final
from .held_out import HeldOut
from .merging import Kind, Merged, merge_rows, newest, plain_files
from .rows import encode
from .rows_that_count import is_of_path
from .turns import Turn

MOST_YAML = 1 << 16
"""The maximum number of bytes of a sweep's configuration; a larger file is skipped."""

R = TypeVar("R", bound=Record)


class Merge:
    """One merge of a folder into another. Without ``is_written`` it counts rows and lists files, and writes
    nothing.

    ``report`` is the record type of a kernel's build report. ``settings`` reads the configuration beside a
    ledger, and returns None if there is none. ``seen`` counts the files of results in the source.
    """

    def __init__(
        self,
        source: Path,
        output: Path,
        is_written: bool,
        report: type[Record],
        settings: Callable[[Path], object],
    ) -> None:
        self.source = source
        self.output = output
        self.is_written = is_written
        self._report = report
        self._settings_of = settings
        self.left_out: list[str] = []
        self.merged: list[Merged] = []
        self.files: list[tuple[Path, str]] = []
        self.seen = 0
        self._newer: dict[tuple[str, ...], bool] = {}

    def all(self) -> None:
        """Merge everything below the source.

        The files beside a ledger are written before it, because the ledgers decide whose file is newer: a
        merge that was killed in between finds the ledgers unchanged and decides the same.
        """
        for pattern, model in DOCUMENTS:
            for theirs in self._files(pattern):
                self._document(theirs, model, lambda one: one.gpu, theirs.stem)
        for theirs in self._files("build/*/*.json"):
            self._document(theirs, self._report, lambda one: one.kernel, theirs.parent.name)
        for theirs in self._files(f"{provenance.FOLDER}/*.jsonl"):
            self._provenance(theirs)
        for theirs in self._files("timings/*/*.yaml"):
            self._settings(theirs)
        for folder, model in DATED:
            for theirs in self._files(f"{folder}/*/*/*.json"):
                self._dated(theirs, model)
        for kind in KINDS:
            for theirs in self._files(kind.pattern):
                found = merge_rows(kind, theirs, self._place(theirs), self.is_written, self.left_out.append)
                self.merged.append(found)
        self._records()

    @property
    def rows(self) -> int:
        """The number of rows that were taken, or would be."""
        return sum(one.taken for one in self.merged)

    @property
    def documents(self) -> int:
        """The number of files that were taken, or would be."""
        return sum(why.startswith(TAKEN) for _, why in self.files)

    def lines(self) -> list[str]:
        """Return a line for each file with something new or different."""
        of_rows = ((one.path, summary(one)) for one in self.merged)
        return [f"{path}: {line}" for path, line in (*self.files, *of_rows) if line]

    def _files(self, pattern: str) -> Iterator[Path]:
        for path in plain_files(self.source, pattern, self.left_out.append):
            self.seen += 1
            if self._stays(path, path.stem, path.parent.name):
                continue
            if not results.inside(self.output, self._place(path)):
                raise UserError(f"{self._place(path)} is a link that leads out of {self.output}; remove it.")
            yield path

    def _stays(self, path: Path, *names: str) -> bool:
        """Whether a file stays on its host, because one of the names is a CPU's."""
        stays = results.folder_for(self.output, "cpu") != self.output and any(
            name.startswith("cpu-") for name in names
        )
        if stays:
            self.left_out.append(f"{path} is from a CPU, whose results stay on its host; skipped.")
        return stays

    def _place(self, theirs: Path) -> Path:
        return self.output / theirs.relative_to(self.source)

    def _document(
        self, theirs: Path, model: type[Record], name_of: Callable[[Any], str], expected: str
    ) -> None:
        """Merge a file of one record: take it if there is none here, or if its rows are newer."""
        found = self._whole(theirs, model)
        if found is None:
            return
        if name_of(found) != expected:
            self.left_out.append(f"{theirs} is not of the kernel and machine in its name; skipped.")
            return
        ours = self._place(theirs)
        before = results.read(model, ours) if ours.exists() else None
        if (
            isinstance(before, Ceilings)
            and isinstance(found, Ceilings)
            and before.environment == found.environment
        ):
            # The noise of equal kernels is found by comparisons, so newer rates do not replace it.
            found = found.replace(noise=before.noise | found.noise)
        self._take(theirs, before is not None, before == found, document(found), self._is_newer(theirs))

    def _provenance(self, theirs: Path) -> None:
        """Add the runs of one GPU that are not here, before the rows that name them."""
        ours = self._place(theirs)
        here = provenance.read(ours)
        incoming = provenance.read(theirs, self.left_out.append)
        both = provenance.merged(here, incoming)
        if both == here:
            return
        self.files.append((ours, f"{TAKEN}: {len(both) - len(here)} runs"))
        if self.is_written:
            for run in (run for name, run in both.items() if here.get(name) != run):
                files.append(ours, run.line())

    def _settings(self, theirs: Path) -> None:
        """Merge the configuration of the sweep that last wrote a ledger, as data without YAML tags."""
        if theirs.stat().st_size > MOST_YAML or self._settings_of(theirs) is None:
            self.left_out.append(f"{theirs} does not hold the settings of a sweep; skipped.")
            return
        found = plain_yaml.load(theirs.read_text())
        content = yaml.safe_dump(found, sort_keys=True).encode()
        ours = self._place(theirs)
        is_same = plain_yaml.is_plain(ours) and plain_yaml.load(ours.read_text()) == found
        self._take(theirs, ours.exists(), is_same, content, self._is_newer(theirs))

    def _dated(self, theirs: Path, model: type[Comparison | HeldOut]) -> None:
        """Merge a record of rounds: of two, the newer one."""
        found = self._whole(theirs, model)
        if found is None:
            return
        if (found.kernel, found.gpu) != (theirs.parent.parent.name, theirs.parent.name):
            self.left_out.append(f"{theirs} is not of the kernel and machine in its path; skipped.")
            return
        ours = self._place(theirs)
        before = results.read(model, ours) if ours.exists() else None
        is_newer = before is not None and found.at > before.at
        self._take(theirs, before is not None, before == found, document(found), is_newer)

    def _take(self, theirs: Path, is_there: bool, is_same: bool, content: bytes, is_newer: bool) -> None:
        if is_same:
            return
        ours = self._place(theirs)
        if is_there and not is_newer:
            self.files.append((ours, "differs; ours stays, because its measurements are not older"))
            return
        self.files.append(
            (ours, f"{TAKEN}, because it differs and its measurements are newer" if is_there else TAKEN)
        )
        if self.is_written:
            write_atomically(ours, content)

    def _is_newer(self, theirs: Path) -> bool:
        """Whether the source has the newer rows of a file's machine, or of its kernel on that machine."""
        words = theirs.relative_to(self.source).parts[1:-1]
        which = (*words, theirs.stem)
        if which not in self._newer:
            pattern = f"timings/{words[0] if words else '*'}/{theirs.stem}.jsonl"
            there, here = (
                newest(LEDGER, results.listed(folder, pattern, lambda sentence: None))
                for folder in (self.source, self.output)
            )
            self._newer[which] = there is not None and (here is None or there > here)
        return self._newer[which]

    def _whole(self, path: Path, model: type[R]) -> R | None:
        try:
            return model.from_json(path.read_bytes())
        except (OSError, ValidationError):
            self.left_out.append(f"{path} is not readable as {model.__name__.lower()}; skipped.")
            return None

    def _records(self) -> None:
        """Merge the records of ad-hoc sweeps: a record never changes once it is here."""
        theirs = runs.folder_in(self.source)
        plain = set(plain_files(self.source, "runs/*.jsonl", self.left_out.append))
        for path, heading in runs.records(theirs, self.left_out.append).items():
            if path not in plain:
                continue
            self.seen += 1
            if self._stays(path, heading.environment.gpu):
                continue
            rows = runs.rows(path, heading, self.left_out.append)
            content = runs.encoded(heading, rows)
            ours = self._place(path)
            is_same = ours.exists() and ours.read_bytes() == content
            if rows:
                self._take(path, ours.exists(), is_same, content, is_newer=False)


TAKEN = "taken"


def document(record: Record) -> bytes:
    """Return the content of a file that holds one record."""
    return record.to_json(indent=2) + b"\n"


def summary(one: Merged) -> str:
    """Describe the outcome for a file's rows; empty if there were no changes."""
    words = {
        "new": one.new,
        "newer than ours": one.newer,
        "older than ours, which stay": one.older,
        "contradict ours, which stay": one.contradicting,
        "lines skipped": one.skipped,
    }
    parts = [f"{count} {what}" for what, count in words.items() if count]
    if not parts:
        return ""
    by = ", ".join(f"{count} by {what}" for what, count in sorted(one.by.items()))
    return ", ".join([*parts, f"{one.same} the same"]) + (f"; rows differ: {by}" if by else "") + "."


# Kinds of files


def parts_of(ours: Measurement, theirs: Measurement) -> str:
    """Return the parts of their keys in which two rows of a point differ, in words."""
    return ", ".join(ours.parts.differences(theirs.parts)) or "another measurement of the same key"


def at(row: Measurement | Final) -> datetime:
    """Return when a row was measured."""
    return row.origin.measured_at


def of_evidence(row: Any) -> tuple[object, ...]:
    """Return the slot of a row of evidence: its measurement, or its function if no point is known."""
    if row.key is not None:
        return row.key, row.point
    return getattr(row, "function", ""), getattr(row, "architecture", "")


def of_kernel(row: Any, path: Path) -> bool:
    """Whether a row of evidence belongs to the kernel of its folder."""
    return bool(row.kernel == path.parent.name)


LEDGER = Kind(
    "timings/*/*.jsonl",
    Measurement,
    slot=lambda row: row.slot,
    is_of=is_of_path,
    encode=encode,
    names_runs=True,
    when=at,
    order=lambda row: (order(row.point), row.parts.settings),
    differs=parts_of,
)

FINALS = Kind(
    "finals/*/*.jsonl",
    Final,
    slot=lambda row: (row.origin.run, row.point, row.power),
    is_of=is_of_path,
    encode=encode,
    names_runs=True,
    when=at,
)


def turns(pattern: str) -> Kind:
    """Return the kind for samples of every round, of finals or of a comparison, whose sides may have
    different kernels."""
    return Kind(
        pattern,
        Turn,
        slot=lambda row: (row.side, row.key, row.point, row.round, row.run),
        is_of=lambda row, path: True,
        encode=Turn.line,
    )


def of_code(name: str, model: type[evidence.Joined]) -> Kind:
    """Return the ``Kind`` of files whose rows explain a measurement."""
    return Kind(f"{name}/*/*.jsonl", model, of_evidence, of_kernel, Record.line, together=True)


KINDS = (
    turns("finals/*/rounds/*.jsonl"),
    FINALS,
    turns(f"{comparisons.FOLDER}/*/*/*.jsonl"),
    turns(f"{held_out.FOLDER}/*/*/*.jsonl"),
    of_code("profile", evidence.ProfileRow),
    of_code("counters", evidence.CounterRow),
    of_code("codegen", evidence.CodeRow),
    Kind(
        "sanitizer/*/*.jsonl",
        evidence.SanitizerRow,
        slot=lambda row: (row.provider, row.tool),
        is_of=of_kernel,
        encode=Record.line,
    ),
    LEDGER,
)
"""Ledgers come last, so that the rows that explain a measurement are there before it."""

DOCUMENTS: tuple[tuple[str, type[Record]], ...] = (
    ("environment/*.json", Environment),
    ("ceilings/*.json", Ceilings),
)
"""Files about one GPU, named after it."""

DATED: tuple[tuple[str, type[Comparison | HeldOut]], ...] = (
    (comparisons.FOLDER, Comparison),
    (held_out.FOLDER, HeldOut),
)
