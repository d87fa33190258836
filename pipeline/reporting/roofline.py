"""Rooflines: how fast providers compute against how often they use a byte, below the measured ceilings.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from kernel_pipeline.records.base import Values
from pipeline.reporting.charts import Chart, Limit, Mark, Series, Style
from pipeline.reporting.numbers import number
from pipeline.reporting.ranking import best_providers
from pipeline.reporting.shares import compute_ceiling
from pipeline.reporting.workload_plots import Machine
from pipeline.store.evidence import CounterRow

APART = 2
"""How many times as many flops a byte one problem of a chart needs at least as another."""


def dram_bytes(rows: Iterable[CounterRow]) -> dict[str, float]:
    """By key the bytes of device memory that all kernels of a call moved; a call with a kernel of which they
    were not counted is left out."""
    found: dict[str, float | None] = {}
    for row in rows:
        if row.key is None or row.status != "ok":
            continue
        moved = None
        before = found.get(row.key, 0.0)
        if before is not None and row.dram_read_bytes is not None and row.dram_write_bytes is not None:
            moved = before + row.dram_read_bytes + row.dram_write_bytes
        found[row.key] = moved
    return {key: moved for key, moved in found.items() if moved is not None}


def rooflines(
    kernel: str,
    best: pd.DataFrame,
    machines: Sequence[Machine],
    counted: Mapping[str, Mapping[str, float]],
    styles: Mapping[str, Style],
) -> list[Chart]:
    """A chart for each of the problems' words and machine, with a mark for the fastest provider at each
    problem. Filled marks stand at the bytes that the kernel needs at least, hollow ones at those that the
    device ``counted``, by machine and key.

    There is none where no problem is apart from the others: all marks above one x say no more than their
    shares of the ceiling do."""
    fastest = best_providers(best).sort_values("rank")
    found = []
    for words in fastest["words"].unique():
        for machine in machines:
            rows = fastest[(fastest["gpu"] == machine.gpu) & (fastest["words"] == words)]
            marks = roofline_marks(rows, counted.get(machine.gpu, {}))
            places = [mark.x for _, mark in marks]
            if not places or max(places) <= APART * min(places):
                continue
            roof = _roof(kernel, rows["problem"].iloc[-1], machine, places)
            lowest, highest = (
                (f(x for one in roof for x, _ in one.points) for f in (min, max)) if roof else (1, 1)
            )
            ends = min(lowest, *places), max(highest, *places)
            series = [
                Series(name, styles[name], [mark for other, mark in marks if other == name], scattered=True)
                for name in dict.fromkeys(name for name, _ in marks)
            ]
            found.append(
                Chart(
                    title=" · ".join(filter(None, [machine.name, words])),
                    x_label="flops a byte of device memory",
                    y_label="TFLOP/s",
                    series=series,
                    gpu=machine.gpu,
                    words=words,
                    limits=roof,
                    is_log=True,
                    x_ticks=[10.0**p for p in range(*(math.ceil(math.log10(end)) for end in ends))]
                    or places[:1],
                )
            )
    return found


def roofline_marks(rows: pd.DataFrame, counted: Mapping[str, float]) -> list[tuple[str, Mark]]:
    """The providers and marks of one machine's rows that compute anything."""
    found = []
    for row in rows.to_dict("records"):
        moved = counted.get(row["key"])
        moved_at_least = moved or row["bytes"]
        if row["flops"] and moved_at_least > 0:  # a logarithm has no place for others
            intensity = row["flops"] / moved_at_least
            by = "by the bytes that were counted" if moved else "by the fewest bytes"
            text = f"{row['label']} at {row['extent']}, {number(row['tflops'])} TFLOP/s, "
            text += f"{number(intensity)} flops a byte {by}"
            found.append((row["provider"], Mark(intensity, row["tflops"], text, bool(moved))))
    return found


def _roof(kernel: str, problem: Values, machine: Machine, places: Sequence[float]) -> list[Limit]:
    """The roof, flat at the peak of the problem's arithmetic where that is known."""
    if machine.ceilings is None:
        return []
    slope = machine.ceilings.copy_gbps / 1e3
    peak = compute_ceiling(kernel, problem, machine.ceilings)
    ends = [min(places) / 2, max(places) * 2]
    knee = [] if peak is None else [peak / slope]
    xs = sorted({*ends, *knee, *(times * one for one in knee for times in (1 / 3, 3))})
    text = f"copy {number(machine.ceilings.copy_gbps)} GB/s" + (
        f", matmul {number(peak)} TFLOP/s" if peak else ""
    )
    return [Limit([(x, min(slope * x, peak or math.inf)) for x in xs], text)]
