"""A kernel's plots in the report.

A workload's plot shows the rate against the dimension on its x axis, with a chart for each machine and each
combination of words. A roofline shows TFLOP/s against flops per byte of device memory, below the measured
ceilings.

Roofline after Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.point import Point

from ..store.evidence import CounterRow
from . import lines
from .charts import Chart, Limit, Mark, Series, Style
from .frames import best_providers
from .headlines import compute_ceiling, entry_of, headline, is_bound
from .numbers import RATES, microseconds, number, percent, speedup

WIDE = 40
"""If the highest rate is more than this many times the lowest, the axis is logarithmic."""


@dataclass(frozen=True)
class Machine:
    """A machine with its name in chart titles and its ceilings."""

    gpu: str
    name: str
    ceilings: Ceilings | None


@dataclass(frozen=True, eq=False)
class WorkloadPlot:
    """The plot of one workload: its rate against the dimension on its x axis.

    ``name`` is the kernel's name for its first plot, followed by the workload's name for other plots.
    ``rows`` are the best configurations with the added columns ``x`` and ``panel``. ``panels`` name the
    charts: the problems' words and the numbers in which the charts differ. ``is_log`` asks for a logarithmic
    axis of rates.
    """

    name: str
    kernel: str
    workload: str
    headline: str
    x_label: str
    panels: Sequence[str]
    rows: pd.DataFrame
    is_log: bool

    @property
    def title(self) -> str:
        """The plot's title."""
        return f"{self.kernel}, {self.workload}: {RATES[self.headline]} against {self.x_label}"

    def charts(self, machines: Sequence[Machine], styles: Mapping[str, Style], baseline: str) -> list[Chart]:
        """Return a chart for each panel and machine with measurements; a panel's machines are neighbours."""
        found = []
        for panel in self.panels:
            for machine in machines:
                rows = self.rows[(self.rows["panel"] == panel) & (self.rows["gpu"] == machine.gpu)]
                if not rows.empty:
                    found.append(
                        Chart(
                            title=" · ".join(filter(None, [machine.name, panel])),
                            x_label=self.x_label.partition(" (")[0],
                            y_label=RATES[self.headline],
                            series=_series(rows, self.headline, styles, baseline),
                            gpu=machine.gpu,
                            words=str(rows["words"].iloc[0]),
                            limits=self._limits(machine.ceilings, rows),
                            is_log=self.is_log,
                        )
                    )
        return found

    def _limits(self, ceilings: Ceilings | None, rows: pd.DataFrame) -> list[Limit]:
        """Return a chart's ceiling: the rate of a plain copy, or of a matmul in the chart's arithmetic."""
        if ceilings is None:
            return []
        if self.headline == "gbps":
            copy = ceilings.copy_gbps
            return [Limit([(0, copy)], f"copy ceiling {number(copy)} GB/s")]
        peak = compute_ceiling(self.kernel, rows["problem"].iloc[-1], ceilings)
        return [] if peak is None else [Limit([(0, peak)], f"matmul ceiling {number(peak)} TFLOP/s")]


def _series(rows: pd.DataFrame, rate: str, styles: Mapping[str, Style], baseline: str) -> list[Series]:
    """Return a line for each provider; the fastest comes last, so that it lies on top."""
    found = []
    for provider in map(str, rows.groupby("provider")[rate].median().sort_values().index):
        line = rows[rows["provider"] == provider].sort_values("x")
        marks = [
            Mark(row["x"], row[rate], _in_words(row, rate, baseline), row["valid"] is False)
            for row in line.to_dict("records")
        ]
        found.append(Series(provider, styles[provider], marks))
    return found


def _in_words(row: Mapping[Any, Any], rate: str, baseline: str) -> str:
    """Return the text of a mark: configuration, problem, time, rate, share, speedup and doubt."""
    share = percent(row["ceiling_fraction"])
    ratio = "" if row["provider"] == baseline else speedup(row["speedup"])
    parts = [
        f"{row['label']} at {row['extent']}",
        f"{microseconds(row['median_us'], is_bound(row))} us",
        f"{number(row[rate])} {RATES[rate]}",
        share and f"{share} of ceiling",
        ratio and f"{ratio}{'!' * bool(row['doubt'])} x {baseline}",
        row["doubt"] and f"not to be trusted: {row['doubt']}",
    ]
    return ", ".join(filter(None, parts))


def workload_ranks(rows: pd.DataFrame) -> dict[str, frozenset[int]]:
    """Return the workloads in which a kernel's rows were timed, each with the ranks of its problems.

    The workload with the most values on its x axis comes first. Ties go to the workload with more problems,
    then to the first in the YAML. A workload whose problems all belong to an earlier one is left out, and so
    is one that the YAML says to leave out of plots.
    """
    timed = rows[rows["status"] == "ok"]
    entry = None if timed.empty else entry_of(str(timed["kernel"].iloc[0]))
    workloads = {} if entry is None else entry.config.workloads
    listed = list(workloads)
    order, ranks = {}, {}
    for workload, group in timed.groupby("workload"):
        name = str(workload)
        if name in workloads and not workloads[name].plotted:
            continue
        ranks[name] = frozenset(group["rank"])
        place = listed.index(name) if name in listed else len(listed)
        order[name] = (-group["x"].nunique(), -len(ranks[name]), place, name)
    found: dict[str, frozenset[int]] = {}
    for name in sorted(ranks, key=order.__getitem__):
        if not any(ranks[name] <= others for others in found.values()):
            found[name] = ranks[name]
    return found


def workload_plots(kernel: str, rows: pd.DataFrame, best: pd.DataFrame) -> list[WorkloadPlot]:
    """Return a kernel's plots, from its rows and its best configurations.

    There is a plot for each workload that was timed at two or more values of its x axis with all other
    dimensions equal.
    """
    found: list[WorkloadPlot] = []
    for workload, ranks in workload_ranks(rows).items():
        here = best[best["rank"].isin(ranks)].sort_values(["rank", "gpu", "provider"])
        shown, x, along = _on_lines(kernel, workload, rows, here)
        if x is None:
            continue
        shown = shown[shown.groupby(["words", "family"])["x"].transform("nunique") > 1]
        if shown.empty:
            continue
        values = {name: {one.get(name) for one in shown["fixed"]} for one in shown["fixed"] for name in one}
        apart = [name for name, some in values.items() if len(some) > 1]
        alike = [f"{name}={shown['fixed'].iloc[0][name]}" for name in values if name not in apart]
        panel = [
            " ".join(filter(None, [words, *(f"{name}={one[name]}" for name in apart if name in one)]))
            for words, one in zip(shown["words"], shown["fixed"], strict=True)
        ]
        moving = [x, *(name for name in shown["problem"].iloc[0] if name in along and name not in values)]
        rate = headline(kernel, workload)
        found.append(
            WorkloadPlot(
                name=f"{kernel}-{workload}" if found else kernel,
                kernel=kernel,
                workload=workload,
                headline=rate,
                x_label=" = ".join(moving) + (f" ({' '.join(alike)})" if alike else ""),
                panels=list(dict.fromkeys(panel)),
                rows=shown.drop(columns=["family", "fixed"]).assign(panel=panel),
                is_log=_is_wide(shown, rate),
            )
        )
    return found


def _is_wide(shown: pd.DataFrame, rate: str) -> bool:
    """Return whether the fastest providers' rates on a line are too far apart for a linear axis."""
    fastest = shown[shown[rate] > 0].groupby(["gpu", "words", "family", "x"])[rate].max()
    of_lines = fastest.groupby(["gpu", "words", "family"])
    return bool((of_lines.max() > WIDE * of_lines.min()).any())


def leading(kernel: str, rows: pd.DataFrame, some: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in ``some``, a machine's rows with the same words, that represent all of them.

    They belong to the kernel's first workload that has any of these rows, and lie on the workload's longest
    line. This leaves out single problems with pinned dimensions.
    """
    for workload, ranks in workload_ranks(rows).items():
        here = some[some["rank"].isin(ranks)]
        if not here.empty:
            placed, x, _ = _on_lines(kernel, workload, rows, here)
            lengths = placed.groupby("family")["x"].transform("nunique")
            return here if x is None else here[lengths == lengths.max()]
    return some


def _on_lines(
    kernel: str, workload: str, rows: pd.DataFrame, some: pd.DataFrame
) -> tuple[pd.DataFrame, str | None, frozenset[str]]:
    """Place some of a kernel's rows on the lines of a workload's plot.

    Returns the rows with the columns ``x`` (the value on the axis), ``fixed`` (the numbers that are constant
    on the row's line) and ``family`` (the line's name); then the dimension on the axis, and the dimensions
    that are equal to it.
    """
    problems = rows[rows["workload"] == workload].drop_duplicates("rank")["problem"]
    points = [Point(kernel=kernel, provider="any", problem=problem) for problem in problems]
    x, along = lines.axis(workload, points)
    on_line = [lines.line_of(problem, x, along).fixed.items() for problem in some["problem"]]
    fixed = [{name: value for name, value in one if type(value) is int} for one in on_line]
    placed = some.assign(
        x=[problem[x] if x else 0 for problem in some["problem"]],
        fixed=pd.Series(fixed, index=some.index, dtype=object),
        family=[str(sorted(one.items())) for one in fixed],
    )
    return placed, x, along


APART = 2
"""A roofline is drawn if the largest flops per byte are more than this many times the smallest."""


def dram_bytes(rows: Iterable[CounterRow]) -> dict[str, float]:
    """Return the bytes of device memory that all kernels of a call moved, by the measurement's key.

    A call is left out if the bytes of any of its kernels were not counted.
    """
    found: dict[str, list[float | None]] = {}
    for row in rows:
        if row.key is not None and row.status == "ok":
            found.setdefault(row.key, []).extend((row.dram_read_bytes, row.dram_write_bytes))
    return {key: sum(moved) for key, moved in found.items() if None not in moved}  # type: ignore[arg-type]


def rooflines(
    kernel: str,
    best: pd.DataFrame,
    machines: Sequence[Machine],
    counted: Mapping[str, Mapping[str, float]],
    styles: Mapping[str, Style],
) -> list[Chart]:
    """Return a roofline for each machine and combination of words, with the fastest provider at each problem.

    ``counted`` has the bytes that the device counted, by machine and key. A hollow mark's flops per byte use
    these bytes, a filled mark's the fewest bytes that the operation needs.

    Problems with about the same flops per byte get no chart: such marks show no more than their shares of the
    ceiling.
    """
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
            xs = [*places, *(x for one in roof for x, _ in one.points)]
            powers = range(math.ceil(math.log10(min(xs))), math.ceil(math.log10(max(xs))))
            series = [
                Series(name, styles[name], [mark for other, mark in marks if other == name], scattered=True)
                for name in dict.fromkeys(name for name, _ in marks)
            ]
            found.append(
                Chart(
                    title=" · ".join(filter(None, [machine.name, words])),
                    x_label="FLOP/byte of device memory",
                    y_label="TFLOP/s",
                    series=series,
                    gpu=machine.gpu,
                    words=words,
                    limits=roof,
                    is_log=True,
                    x_ticks=[10.0**power for power in powers] or places[:1],
                )
            )
    return found


def roofline_marks(rows: pd.DataFrame, counted: Mapping[str, float]) -> list[tuple[str, Mark]]:
    """Return the provider and mark of each of one machine's rows that has flops and bytes."""
    found = []
    for row in rows.to_dict("records"):
        moved = counted.get(row["key"])
        moved_at_least = moved or row["bytes"]
        if row["flops"] and moved_at_least > 0:  # the axes are logarithmic
            intensity = row["flops"] / moved_at_least
            text = f"{row['label']} at {row['extent']}, {number(row['tflops'])} TFLOP/s, "
            text += f"{number(intensity)} FLOP/byte"
            found.append((row["provider"], Mark(intensity, row["tflops"], text, bool(moved))))
    return found


def _roof(kernel: str, problem: Values, machine: Machine, places: Sequence[float]) -> list[Limit]:
    """Return the roof: the copy rate's slope, and the flat peak of the problem's arithmetic if known."""
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
