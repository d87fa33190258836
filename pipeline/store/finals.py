"""Finals: each provider's best configuration measured again, all of a problem side by side; a JSON line each.

A file holds the finals of every run, so that it tells what became faster when; of a problem the newest run's
count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from kernel_pipeline import files, json_lines
from kernel_pipeline.contract import Provider
from kernel_pipeline.records.base import Record, ValidationError, Values
from kernel_pipeline.records.fields import Count, Microseconds, Name, NotNegative, Rounded, Text
from kernel_pipeline.records.measurement import Origin, Parts, Rate
from kernel_pipeline.records.point import Point
from pipeline.store import results
from pipeline.store.provenance import RunProvenance, Runs
from pipeline.store.rows import Reader, UnknownRunError, encode
from pipeline.store.turns import Accuracy

By = Literal["own", "torch", "peer", "textbook"]
"""Who wrote a provider: this repository, to be fast; torch, and what it compiles; another project; or this
repository, as everybody writes it."""


def written_by(provider: Provider) -> By:
    """Who wrote a provider."""
    if provider.package:
        return "peer"
    if provider.textbook:
        return "textbook"
    return "own" if provider.is_own else "torch"


How = Literal["exact", "generalised", "guessed", "default", "torch"]
"""How a configuration is chosen for a caller, by the table of what is the fastest at each problem."""

Positive = Annotated[float, Meta(gt=0, le=1e9), Rounded(5)]


class Against(Record):
    """A final beside the one that it is compared with, the fastest of our own.

    ratio:
        Its time over that one's: above 1 it is slower.
    low, high:
        The 90 % interval of the ratio.
    """

    point: Point
    ratio: Positive
    low: NotNegative
    high: Positive | None = None
    verdict: Literal["same", "faster", "slower", "undecided"]


ONE_ROUND = "one round"


def decided(verdict: str, rounds: int) -> str:
    """A verdict where it is not what the ratio says; of one round, which decides nothing, that it was one."""
    if rounds == 1:
        return ONE_ROUND
    return verdict if verdict in ("same", "undecided") else ""


class Final(Record):
    """A provider's best configuration at one problem, as rounds found it.

    rounds_us:
        The median of each round, in microseconds.
    swept_us:
        What the sweep had found of it: of many configurations the best is a lucky one, too.
    power:
        ``burst``: milliseconds after a rest, at full clocks. ``sustained``: after two seconds of the same
        work, at the clock that the device's power allows.
    accuracy:
        How far it is from float64, and whether it repeats itself bit by bit; of ``burst`` rows.
    sm_clock_mhz, joules:
        The clock at which the device settled, and its energy for a call; of ``sustained`` rows.
    against:
        None for the fastest of our own, and where there is none.
    dispatched:
        How a caller gets this very configuration at the problem; None for one that no caller gets. It may be
        another than the provider's best.
    """

    key: Text
    point: Point
    workload: Name
    by: By
    rounds_us: Annotated[tuple[Microseconds, ...], Meta(min_length=1)]
    median_us: Microseconds
    swept_us: Microseconds
    headline: Literal["gbps", "tflops"]
    rate: Rate
    against: Against | None = None
    dispatched: How | None = None
    power: Literal["burst", "sustained"] = "burst"
    accuracy: Accuracy | None = None
    sm_clock_mhz: Count | None = None
    joules: NotNegative | None = None
    parts: Parts
    origin: Origin

    def __post_init__(self) -> None:
        super().__post_init__()
        if not min(self.rounds_us) <= self.median_us <= max(self.rounds_us):
            raise ValueError("the median lies outside of the rounds")
        if not self.rate.is_of(self.median_us):
            raise ValueError("the rates are not those of the time")
        if self.key != self.parts.key:
            raise ValueError("the key is not that of the parts")

    @property
    def place(self) -> tuple[str, Values]:
        """Where it meets others."""
        return self.point.kernel, self.point.problem


def path(folder: Path, kernel: str, gpu: str) -> Path:
    """The finals of one kernel on one GPU."""
    return folder / "finals" / kernel / f"{gpu}.jsonl"


def rounds_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Every round's samples of these."""
    return folder / "finals" / kernel / "rounds" / f"{gpu}.jsonl"


def append(file: Path, rows: Sequence[Final], run: RunProvenance | None = None) -> None:
    """Add finals after the line of their run, ``run`` or what they tell of it, and make sure that all is on
    the disk. Raises UserError when it can't be written."""
    runs = Runs(file)
    if run is not None:
        runs.note(run)
    for row in rows:
        runs.cover(row.origin, row.parts, row.point.kernel)
    files.append(file, b"".join(map(encode, rows)))


def read(file: Path, warn: Callable[[str], None]) -> list[Final]:
    """The finals of a file, the oldest first; a line that is none, or of another kernel or machine than the
    file, is skipped with a sentence to ``warn``."""
    reader = Reader(file, Final)

    def refused(number: int, line: bytes, error: ValidationError) -> None:
        if not isinstance(error, UnknownRunError):
            warn(f"{file}:{number} is not readable; skipped.")

    rows = json_lines.read(file, reader.row, refused)
    for sentence in reader.said():
        warn(sentence)
    own = [row for row in rows if (row.point.kernel, row.origin.gpu) == (file.parent.name, file.stem)]
    if count := len(rows) - len(own):
        warn(f"{file} holds {count} row{'s' * (count > 1)} of another kernel or machine; skipped.")
    return own


def newest(rows: Sequence[Final]) -> list[Final]:
    """Those of each problem's last run on each machine."""
    last = {(row.origin.gpu, row.place): row.origin.run for row in rows}
    return [row for row in rows if row.origin.run == last[row.origin.gpu, row.place]]


def newest_with_ours(rows: Sequence[Final]) -> list[Final]:
    """Those of each problem's last run on each machine that measured one of ours; where none did, of the last
    run."""
    ours = [row for row in rows if row.by == "own"]
    last = {(row.origin.gpu, row.place): row.origin.run for some in (rows, ours) for row in some}
    return [row for row in rows if row.origin.run == last[row.origin.gpu, row.place]]


def fastest_of_ours(some: Sequence[Final]) -> Final | None:
    """Of a problem's finals the one that the others are compared with; None where none of ours had any."""
    return next((row for row in some if row.by == "own" and row.against is None), None)


def load(folder: Path, warn: Callable[[str], None], local: bool = True) -> dict[tuple[str, str], list[Final]]:
    """All finals below the folder by kernel and machine, and with ``local`` of the repository's own results
    this host's too."""
    paths = [
        one
        for place in results.folders_of(folder, local)
        for one in results.listed(place, "finals/*/*.jsonl", warn)
    ]
    return {(one.parent.name, one.stem): read(one, warn) for one in paths}
