"""Finals: each provider's best configuration measured again, side by side at each problem; one JSON line
each.

A file holds the finals of every run, so that it shows when a provider became faster. For each problem the
newest run is used, but not a run of one round, which decides nothing, after a longer one of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from kernel_pipeline import files
from kernel_pipeline.contract import Provider
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.fields import Count, Microseconds, Name, NotNegative, Rounded, Text
from kernel_pipeline.records.measurement import Accuracy, Origin, Parts, Rate
from kernel_pipeline.records.point import Point

from . import results
from .provenance import RunProvenance, Runs
from .rows import Reader, encode
from .rows_that_count import of_path

By = Literal["own", "torch", "peer", "textbook"]
"""A provider's author and purpose: ``own`` is this repository's code, written to be fast, ``torch`` is torch
and its compiler, ``peer`` another project, ``textbook`` this repository's code in the usual textbook form."""


def written_by(provider: Provider) -> By:
    """Return the author of a provider: ``own``, ``torch``, ``peer`` or ``textbook``."""
    if provider.package:
        return "peer"
    if provider.textbook:
        return "textbook"
    return "own" if provider.is_own else "torch"


How = Literal["exact", "generalised", "guessed", "default", "other_dtype", "sibling", "torch"]
"""The ways in which ``kernel_pipeline.ops`` chooses a configuration for a caller."""

Positive = Annotated[float, Meta(gt=0, le=1e9), Rounded(5)]


class Against(Record):
    """A final compared with the fastest own final at the problem.

    point:
        The fastest own point.
    ratio:
        The time of this final over the time of our fastest; above 1 this final is slower.
    low, high:
        The 90 % interval of the ratio; ``high`` is None after one round.
    """

    point: Point
    ratio: Positive
    low: NotNegative
    high: Positive | None = None
    verdict: Literal["same", "faster", "slower", "undecided"]


ONE_ROUND = "one round"


def decided(verdict: str, rounds: int) -> str:
    """Return the verdict if it adds to the ratio: ``same`` or ``undecided``, else an empty text. One round
    decides nothing, and gives ``one round``."""
    if rounds == 1:
        return ONE_ROUND
    return verdict if verdict in ("same", "undecided") else ""


class Final(Record):
    """A provider's best configuration at one problem, measured in rounds.

    rounds_us:
        The median of each round, in microseconds.
    swept_us:
        The time that the sweep had measured. The best of many configurations is partly luck.
    power:
        ``burst``: milliseconds after a rest, at full clocks. ``sustained``: after two seconds of the same
        work, at the clock that the device's power allows.
    accuracy:
        The distance from float64, and whether outputs repeat bit by bit; only in ``burst`` rows.
    sm_clock_mhz, joules:
        The clock at which the device settled, and its energy per call; only in ``sustained`` rows.
    against:
        None for the fastest own final, and if there is none.
    dispatched:
        How a caller gets this configuration at the problem, None if no caller gets it. A caller may get
        another configuration than the provider's best.
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
            raise ValueError("the rates do not match the time")
        if self.key != self.parts.key:
            raise ValueError("the key does not match the parts")

    @property
    def place(self) -> tuple[str, Values]:
        """The kernel and problem, within which finals are compared."""
        return self.point.kernel, self.point.problem


def path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the finals of one kernel on one GPU."""
    return folder / "finals" / kernel / f"{gpu}.jsonl"


def rounds_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of the samples of every round of these finals."""
    return folder / "finals" / kernel / "rounds" / f"{gpu}.jsonl"


def append(file: Path, rows: Sequence[Final], run: RunProvenance | None = None) -> None:
    """Append finals after the line of their run, and make sure that all is on the disk. Without ``run``, the
    line is made from the rows. Raises UserError when it can't be written."""
    runs = Runs(file)
    if run is not None:
        runs.note(run)
    for row in rows:
        runs.cover(row.origin, row.parts, row.point.kernel)
    files.append(file, b"".join(map(encode, rows)))


def read(file: Path, warn: Callable[[str], None]) -> list[Final]:
    """Return the finals of a file, the oldest first. A line that is not a final, or belongs to another kernel
    or machine than the file, is skipped with a sentence to ``warn``."""
    return of_path(file, Reader(file, Final).every(warn, "is not readable; skipped."), warn)


def of_last_run(rows: Sequence[Final]) -> list[Final]:
    """Return the finals of each problem's last run on each machine."""
    last = {(row.origin.gpu, row.place): row.origin.run for row in rows}
    return [row for row in rows if row.origin.run == last[row.origin.gpu, row.place]]


def newest(rows: Sequence[Final]) -> list[Final]:
    """Return the finals of each problem's last run on each machine. A run of one round, as after an
    interruption, does not count if an earlier run measured the same in more."""
    deciding = _deciding(rows)
    return [row for row in rows if row.origin.run == deciding[row.origin.gpu, row.place]]


def newest_with_ours(rows: Sequence[Final]) -> list[Final]:
    """Return the finals of each problem as ``newest``, among the runs that measured an own provider; if no
    run did, among all."""
    ours = {(row.origin.run, row.place) for row in rows if row.by == "own"}
    deciding = _deciding(rows) | _deciding([row for row in rows if (row.origin.run, row.place) in ours])
    return [row for row in rows if row.origin.run == deciding[row.origin.gpu, row.place]]


def _deciding(rows: Sequence[Final]) -> dict[tuple[str, tuple[str, Values]], str]:
    """Return the run whose finals count, by machine and problem."""
    runs: dict[tuple[str, tuple[str, Values]], dict[str, list[Final]]] = {}
    for row in rows:
        of_problem = runs.setdefault((row.origin.gpu, row.place), {})
        of_problem[row.origin.run] = [*of_problem.pop(row.origin.run, []), row]
    found = {}
    for at, some in runs.items():
        found[at], last = some.popitem()
        keys, rounds = _measured(last)
        longer = (run for run, before in reversed(some.items()) if _is_longer(before, keys))
        if rounds == 1:
            found[at] = next(longer, found[at])
    return found


def _is_longer(some: Sequence[Final], keys: set[str]) -> bool:
    measured, rounds = _measured(some)
    return keys <= measured and rounds > 1


def _measured(some: Sequence[Final]) -> tuple[set[str], int]:
    """Return the keys of a run's finals at full clocks, and the fewest rounds of one."""
    burst = [row for row in some if row.power == "burst"]
    return {row.key for row in burst}, min((len(row.rounds_us) for row in burst), default=0)


def fastest_of_ours(some: Sequence[Final]) -> Final | None:
    """Return the own final that the others of a problem are compared with, None if there is none."""
    return next((row for row in some if row.by == "own" and row.against is None), None)


def load(folder: Path, warn: Callable[[str], None], local: bool = True) -> dict[tuple[str, str], list[Final]]:
    """Return all finals below the folder, by kernel and machine; with ``local`` this host's own beside the
    repository's."""
    paths = [
        one
        for place in results.folders_of(folder, local)
        for one in results.listed(place, "finals/*/*.jsonl", warn)
    ]
    return {(one.parent.name, one.stem): read(one, warn) for one in paths}
