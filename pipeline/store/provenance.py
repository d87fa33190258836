"""Provenance: the data that all rows of a run share, a line for each run in ``provenance/<gpu>.jsonl`` of a
results folder. A row names its run.

A run's line is on the disk before the first row that names it. If a run has two lines the last line is used,
so that a line can be written again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import field

from kernel_pipeline import files, json_lines
from kernel_pipeline.files import locked, write_atomically
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.credentials import MaskedText
from kernel_pipeline.records.environment import UNKEYED, Environment
from kernel_pipeline.records.fields import Integer, Name, Text, When
from kernel_pipeline.records.measurement import Commit, Origin, Parts

FOLDER = "provenance"

IN_RESULTS = ("timings", "finals")
"""The folders of results, by kernel and GPU, whose rows name runs."""


class OutsideKernel(Record):
    """The commit of a kernel in another repository."""

    commit: Commit
    dirty: bool = False


class RunProvenance(Record):
    """One invocation that measured on one model of GPU, and the data that its rows share.

    devices:
        The devices that measured, such as ``cuda:0``, each with a hash of the GPU's UUID. Equal hashes mean
        that two runs used the same GPU. It is None for a CPU, and if it was not noted.
    commit, dirty:
        The state of this repository; a kernel ``outside`` of it has its own commit.
    environment:
        Everything outside of the commit that a key may depend on; None if it was not noted.
    settings:
        The digest of ``timing`` and ``seed``, as in ``Parts``.
    measurement:
        The version of the code that times and verifies.
    """

    run: Text
    gpu: Name
    devices: dict[Text, Text | None]
    command: MaskedText
    commit: Commit
    dirty: bool = False
    outside: dict[Name, OutsideKernel] = field(default_factory=dict)
    image: Text | None = None
    base_image: Text | None = None
    environment: Environment | None = None
    settings: Text
    timing: dict[Name, float | int | str] | None = None
    seed: Integer | None = None
    measurement: Text

    def origin(self, kernel: str, measured_at: When, device: str) -> Origin:
        """Return the origin of a row of the run."""
        own = self.outside.get(kernel)
        return Origin(
            gpu=self.gpu,
            device=device,
            run=self.run,
            command=self.command,
            commit=self.commit if own is None else own.commit,
            dirty=self.dirty if own is None else own.dirty,
            tool=None if own is None else self.commit,
            measured_at=measured_at,
            image=self.image,
            base_image=self.base_image,
        )


def run_of(origin: Origin, parts: Parts, kernel: str) -> RunProvenance:
    """Return the part of a run that one of its rows has."""
    outside = origin.tool is not None
    own = OutsideKernel(commit=origin.commit, dirty=origin.dirty)
    return RunProvenance(
        run=origin.run,
        gpu=origin.gpu,
        devices={origin.device: None},
        command=origin.command,
        commit=origin.tool or origin.commit,
        dirty=origin.dirty,
        outside={kernel: own} if outside else {},
        image=origin.image,
        base_image=origin.base_image,
        settings=parts.settings,
        measurement=parts.measurement,
    )


def keyed(environment: Environment) -> Environment:
    """Return an environment without the fields that no key depends on; a run's line names the image
    itself."""
    return environment.replace(**dict.fromkeys(UNKEYED))


def hashed(uuid: str | None) -> str | None:
    """Return a hash that identifies a GPU without its UUID, None for a CPU."""
    return None if uuid is None else hashlib.sha256(f"kernel-pipeline {uuid}".encode()).hexdigest()[:16]


def beside(path: Path) -> Path:
    """Return the file with the runs of a file of rows: in its results folder, or in its own folder if it is
    in no results folder."""
    in_results = len(path.parents) > 2 and path.parents[1].name in IN_RESULTS
    return (path.parents[2] if in_results else path.parent) / FOLDER / path.name


def read(path: Path, warn: Callable[[str], None] = lambda sentence: None) -> dict[str, RunProvenance]:
    """Read the runs of a file, by id; none if there is no file. A line that is not a run is skipped with a
    sentence to ``warn``."""
    refused = json_lines.warning(path, warn, "is not the line of a run (incomplete or edited); skipped.")
    return {run.run: run for run in json_lines.read(path, RunProvenance.from_json, refused)}


class Runs:
    """The runs of one file of rows, for a process that appends rows to it."""

    def __init__(self, rows: Path) -> None:
        self.path = beside(rows)
        self._known = read(self.path)
        self._noted: dict[str, RunProvenance] = {}

    def note(self, run: RunProvenance) -> None:
        """Make sure that a run's line is on the disk. Raises UserError when it can't be written."""
        if self._known.get(run.run) != run:
            files.append(self.path, run.line())
        self._known[run.run] = self._noted[run.run] = run

    def cover(self, origin: Origin, parts: Parts, kernel: str) -> None:
        """Make sure that a row's run has a line: the noted line, or else a line made from the row. Raises
        UserError when it can't be written."""
        if origin.run not in self._known:
            self.note(run_of(origin, parts, kernel))
        self._noted[origin.run] = self._known[origin.run]
        if not self.path.exists():
            self.keep()

    def keep(self) -> None:
        """Write again the lines of runs that this process's rows name, if the file was removed since."""
        for run in self._noted.keys() - read(self.path).keys():
            files.append(self.path, self._noted[run].line())


def cover(rows: Path, some: Iterable[tuple[Origin, Parts, str]]) -> None:
    """Make sure that the runs of some rows in the file ``rows`` have a line, as ``Runs.cover`` does."""
    runs = Runs(rows)
    for origin, parts, kernel in some:
        runs.cover(origin, parts, kernel)


def environments(folders: Iterable[Path]) -> dict[str, Environment]:
    """Return the environment of each run in the results folders, by run, if its line has one."""
    paths = [path for folder in folders for path in sorted((folder / FOLDER).glob("*.jsonl"))]
    runs = [run for path in paths for run in read(path).values()]
    return {run.run: run.environment for run in runs if run.environment is not None}


def merged(
    ours: Mapping[str, RunProvenance], theirs: Mapping[str, RunProvenance]
) -> dict[str, RunProvenance]:
    """Merge the runs of two clones. If both have a run ours is kept, unless ours was only made from a row."""
    added = {
        name: run
        for name, run in theirs.items()
        if name not in ours or (ours[name].environment is None and run.environment is not None)
    }
    return {**ours, **added}


def prune(path: Path, named: Callable[[], set[str]]) -> int:
    """Drop the lines of runs that no row names, and return how many. ``named`` reads the runs that rows name,
    while a lock keeps other processes from adding lines."""
    with locked(path):
        runs = read(path)
        kept = named()
        left = [run for name, run in runs.items() if name in kept]
        if len(left) < len(runs):
            write_atomically(path, b"".join(run.line() for run in left))
        return len(runs) - len(left)


def named_in(path: Path) -> set[str]:
    """Return the runs that the rows of a file name."""
    rows = (
        json.loads(line) for _, line in json_lines.numbered(files.content(path)) if json_lines.is_object(line)
    )
    return {row["run"] for row in rows if isinstance(row.get("run"), str)}
