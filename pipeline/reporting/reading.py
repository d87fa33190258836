"""Ledgers as one table of data, however long they are.

A million measurements as records take ten gigabytes. Here each process reads a part of a ledger, checks each
line as a record, and keeps of it the numbers and of which kinds it is; the few records that stand for all of
their kind are the only ones that stay.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.machine.device import cpu_threads
from pipeline.machine.reaper import die_with
from pipeline.points.point import Point
from pipeline.reporting.frames import USUAL_TIMERS
from pipeline.store.ledger import NOT_A_ROW
from pipeline.store.record import Measurement
from pipeline.store.rows import Reader, UnknownRunError, without_line

PART = 16 << 20
"""Bytes of a ledger that a process reads at a time; shorter ledgers are read here."""

NONE = -1
"""What stands for a count that a row does not have."""

FLOATS: Mapping[str, str] = {
    **dict.fromkeys(("median_us", "p20_us", "p80_us", "rel_ci"), "timing"),
    **dict.fromkeys(("gbps", "tflops", "ceiling_fraction"), "rate"),
    "noise_floor": "state",
    "tolerance_used": "outcome",
}
COUNTS: Mapping[str, str] = {"bytes": "rate", "flops": "rate"}
"""The numbers of a row, by the part of the measurement that has them."""


@dataclass(frozen=True)
class RecordFilter:
    """The points and keys of which the records themselves are wanted."""

    points: frozenset[Point] = frozenset()
    keys: frozenset[str] = frozenset()


@dataclass
class Part:
    """What was read of a ledger. Arrays have an element a row, in their order.

    ``kinds`` are the distinct values that rows share, by name, and ``codes`` which of them a row has:
    ``problem`` is a workload and a problem, ``configuration`` a provider and its parameters, ``settings`` the
    digest of the timing's, ``fate`` how it ended, and ``origin`` all that decides what is old about a row;
    of this each kind is told by the ``examples`` of the same place. ``wanted`` are records that were asked
    for. ``unreadable`` are the numbers of lines that are no rows, ``lines`` is how many there are,
    ``foreign`` counts the rows of another kernel or machine, and ``unknown`` are the runs that rows name and
    that have no line, once a row.
    """

    kinds: dict[str, list[Any]] = field(default_factory=dict)
    codes: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    numbers: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    examples: list[Measurement] = field(default_factory=list)
    wanted: list[Measurement] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    lines: int = 0
    foreign: int = 0
    unknown: list[str] = field(default_factory=list)


KINDS = ("problem", "configuration", "settings", "fate", "origin")


def kinds_of(row: Measurement) -> tuple[tuple[Any, ...], ...]:
    """What a row shares with others, by ``KINDS``."""
    outcome, parts, origin = row.outcome, row.parts, row.origin
    state = outcome.state
    of_state = (None,) * 3 if state is None else (state.valid, state.invalid_reason, state.throttle)
    bound = None if row.rate is None else row.rate.bound
    return (
        (row.workload, row.point.problem),
        (row.point.provider, row.point.parameters),
        (parts.settings,),
        (outcome.status, outcome.error, outcome.incomparable, bound, *of_state),
        (
            *(row.point.provider, parts.source, parts.measurement, parts.environment),
            *(origin.gpu, origin.commit, origin.dirty, origin.run),
        ),
    )


def read_part(path: Path, begin: int, end: int, wanted: RecordFilter) -> Part:
    """The rows of a ledger between two ends of lines, as long as they are of the ledger's kernel and
    machine."""
    found = Part()
    tables: list[dict[Any, int]] = [{} for _ in KINDS]
    codes: list[list[int]] = [[] for _ in KINDS]
    numbers: dict[str, list[Any]] = {name: [] for name in (*FLOATS, *COUNTS)}
    keys, points, times, usual = [], [], [], []
    reader = Reader(path, Measurement)
    with path.open("rb") as file:
        file.seek(begin)
        content = file.read(end - begin)
    for line in content.split(b"\n"):
        found.lines += 1
        if not line.strip():
            continue
        try:
            row = reader.row(line)
        except UnknownRunError as error:
            found.unknown.append(str(error))
            continue
        except (ValueError, TypeError, RecursionError):
            found.unreadable.append(found.lines)
            continue
        if (row.point.kernel, row.origin.gpu) != (path.parent.name, path.stem):
            found.foreign += 1
            continue
        for table, code, kind in zip(tables, codes, kinds_of(row), strict=True):
            code.append(table.setdefault(kind, len(table)))
        if len(tables[-1]) > len(found.examples):
            found.examples.append(row)
        if row.key in wanted.keys or row.point in wanted.points:
            found.wanted.append(row)
        timing = row.outcome.timing
        parts = {"timing": timing, "rate": row.rate, "state": row.outcome.state, "outcome": row.outcome}
        for name, part in FLOATS.items():
            value = getattr(parts[part], name, None)
            numbers[name].append(np.nan if value is None else value)
        for name, part in COUNTS.items():
            numbers[name].append(getattr(parts[part], name, NONE))
        keys.append(row.key.encode())
        points.append(int(row.parts.point, 16))
        times.append(int(row.origin.measured_at.timestamp()))
        usual.append(timing is None or (timing.cache == "cold" and timing.timer in USUAL_TIMERS))
    found.lines -= 1  # the end of the last line is the beginning of none
    found.kinds = {name: list(table) for name, table in zip(KINDS, tables, strict=True)}
    found.codes = {name: np.array(code, np.int32) for name, code in zip(KINDS, codes, strict=True)}
    found.numbers = {name: np.array(numbers[name], np.float64) for name in FLOATS}
    found.numbers |= {name: np.array(numbers[name], np.int64) for name in COUNTS}
    found.numbers |= {
        "key": np.array(keys, "S16"),
        "point": np.array(points, np.uint64),
        "measured_at": np.array(times, np.int64),
        "usual": np.array(usual, bool),
    }
    return found


def read(
    paths: Sequence[Path], wanted: RecordFilter, warn: Callable[[str], None]
) -> Iterator[tuple[Path, Part]]:
    """What each ledger holds, part by part in their order. Lines that can't be read, and rows of another
    kernel or machine than their file, are skipped with a sentence to ``warn``."""
    jobs = [(path, begin, end) for path in paths for begin, end in parts_of(path)]
    with _each(jobs, wanted) as parts:
        before: Path | None = None
        lines = foreign = 0
        unknown: Counter[str] = Counter()
        for (path, _, _), part in zip(jobs, parts, strict=True):
            if path != before:
                _say_left_out(before, foreign, unknown, warn)
                before, lines, foreign, unknown = path, 0, 0, Counter()
            unknown.update(part.unknown)
            for number in part.unreadable:
                warn(NOT_A_ROW.format(path=path, number=lines + number))
            lines, foreign = lines + part.lines, foreign + part.foreign
            yield path, part
        _say_left_out(before, foreign, unknown, warn)


def _say_left_out(
    path: Path | None, count: int, unknown: Mapping[str, int], warn: Callable[[str], None]
) -> None:
    for sentence in () if path is None else without_line(path, unknown):
        warn(sentence)
    if count:
        warn(f"{path} holds {count} row{'s' * (count > 1)} of another kernel or machine; skipped.")


@contextmanager
def _each(jobs: Sequence[tuple[Path, int, int]], wanted: RecordFilter) -> Iterator[Iterable[Part]]:
    """The parts in their order: of large ledgers read by processes, of small ones here."""
    if sum(end - begin for _, begin, end in jobs) <= PART:
        yield (read_part(*job, wanted) for job in jobs)
        return
    with ProcessPoolExecutor(
        max(1, min(cpu_threads(), len(jobs))), get_context("fork"), _begin, (os.getpid(),)
    ) as processes:
        yield (one.result() for one in [processes.submit(read_part, *job, wanted) for job in jobs])


def _begin(parent: int) -> None:
    """What a process that reads does first: end with its parent, and look for no cycles, of which records
    have none."""
    die_with(parent)
    gc.disable()


def parts_of(path: Path) -> list[tuple[int, int]]:
    """Where parts of a ledger begin and end: each at the end of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        found, begin = [], 0
        while begin < size:
            file.seek(min(begin + PART, size))
            file.readline()
            found.append((begin, file.tell()))
            begin = file.tell()
    return found
