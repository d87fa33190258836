"""Finals over commits: what became faster when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.points import notation
from pipeline.points.point import order
from pipeline.reporting.numbers import number, speedup
from pipeline.store.finals import ONE_ROUND, Final

MOST_RUNS = 8
"""The newest runs of a kernel on a machine that a table shows."""


@dataclass(frozen=True)
class KernelHistory:
    """One kernel on one machine: the runs, each with its commit and day, the oldest first; and a line a
    problem, with our fastest at each run and its time."""

    kernel: str
    gpu: str
    runs: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def parts(rows: Sequence[Final]) -> list[KernelHistory]:
    """By kernel and machine the fastest of ours in each run of finals. A cell is its time in microseconds,
    how many times as fast it is as in the run before, ``one round`` where either run had only one, and its
    configuration where that is another."""
    best: dict[tuple[str, str], dict[str, dict[str, Final]]] = {}
    runs: dict[tuple[str, str], dict[str, Final]] = {}
    for row in sorted(rows, key=lambda row: (row.origin.measured_at, order(row.point))):
        if row.by != "own" or row.power != "burst" or row.against is not None:
            continue
        place = row.point.kernel, row.origin.gpu
        runs.setdefault(place, {})[row.origin.run] = row
        problem = f"{notation.extent(row.point)} {notation.words(row.point)}".strip()
        best.setdefault(place, {}).setdefault(problem, {})[row.origin.run] = row
    found = []
    for (kernel, gpu), problems in sorted(best.items()):
        shown = list(runs[kernel, gpu].items())[-MOST_RUNS:]
        heads = [f"{row.origin.commit[:10]}, {row.origin.measured_at:%Y-%m-%d}" for _, row in shown]
        lines = [
            (problem, *_cells([of_run.get(run) for run, _ in shown])) for problem, of_run in problems.items()
        ]
        found.append(KernelHistory(kernel, gpu, tuple(heads), tuple(lines)))
    return found


def _cells(rows: Sequence[Final | None]) -> list[str]:
    cells, before = [], None
    for row in rows:
        if row is None:
            cells.append("")
            continue
        words = [number(row.median_us)]
        if before is not None:
            is_once = 1 in (len(before.rounds_us), len(row.rounds_us))
            words.append(f"x {speedup(before.median_us / row.median_us)}" + f" ({ONE_ROUND})" * is_once)
        if before is None or before.point != row.point:
            words.append(notation.label(row.point))
        cells.append(", ".join(words))
        before = row
    return cells
