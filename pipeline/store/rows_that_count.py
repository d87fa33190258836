"""Choose the rows that count: the newest lines of a ledger, and the rows that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kernel_pipeline.records.base import Record
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import order

from .ledger import read_rows

R = TypeVar("R", bound=Record)

USUAL_TIMERS = ("graph", "event", "perf_counter")
"""The default timers: a CUDA graph on a GPU, events where a graph can't be captured, the host's clock on a
CPU."""

SHORT_US = 30.0
"""Events add about 3 us to a kernel: a tenth of this time."""


def own_rows(path: Path, warn: Callable[[str], None]) -> list[Measurement]:
    """Return the rows of a ledger that belong to the kernel and the machine in its path, sorted by point.
    Only the newest row of each point and settings is kept."""
    last = {row.slot: row for row in of_path(path, read_rows(path, warn), warn)}
    return sorted(last.values(), key=lambda row: (order(row.point), row.parts.settings))


def of_path(path: Path, rows: Sequence[R], warn: Callable[[str], None]) -> list[R]:
    """Return the rows of the kernel and the machine in a file's path. ``warn`` gets a sentence on others."""
    own = [row for row in rows if is_of_path(row, path)]
    if count := len(rows) - len(own):
        warn(f"{path} holds {count} row{'s' * (count > 1)} of another kernel or machine; skipped.")
    return own


def is_of_path(row: Any, path: Path) -> bool:
    """Whether a row belongs to the kernel and the machine in a file's path."""
    return bool((row.point.kernel, row.origin.gpu) == (path.parent.name, path.stem))


def newest(measurements: Iterable[Measurement], slot: Callable[[Measurement], Hashable]) -> list[Measurement]:
    """Return the newest measurement of each slot."""
    found: dict[Hashable, Measurement] = {}
    for row in measurements:
        known = found.setdefault(slot(row), row)
        if known.origin.measured_at <= row.origin.measured_at:
            found[slot(row)] = row
    return list(found.values())


def comparable(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Return each point's newest row on each machine among the rows that can be compared.

    A row can be compared if a default timer timed it over cold inputs, or if it has no time. A short time by
    events is marked as not to be trusted.
    """
    usual = (
        row
        for row in measurements
        if (timing := row.outcome.timing) is None or (timing.cache == "cold" and timing.timer in USUAL_TIMERS)
    )
    return list(map(_marked, newest(usual, lambda row: (row.origin.gpu, row.point))))


def _marked(row: Measurement) -> Measurement:
    timing, state = row.outcome.timing, row.outcome.state
    if timing is None or state is None or timing.timer != "event" or timing.median_us >= SHORT_US:
        return row
    return row.with_state(state.distrusted("timed by events, which add about 3 us"))
