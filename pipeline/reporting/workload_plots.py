"""What a report draws of a kernel: a plot a workload, its rate against its x, a chart a machine and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.point import Point
from pipeline.reporting import lines
from pipeline.reporting.charts import Chart, Limit, Mark, Series, Style
from pipeline.reporting.headlines import entry_of, headline, is_bound
from pipeline.reporting.numbers import RATES, microseconds, number, percent, speedup
from pipeline.reporting.shares import compute_ceiling

WIDE = 40
"""How many times as high as the lowest the highest rate is on an axis that has to be logarithmic."""


@dataclass(frozen=True)
class Machine:
    """What a machine's charts are titled with and measured against."""

    gpu: str
    name: str
    ceilings: Ceilings | None


@dataclass(frozen=True, eq=False)
class WorkloadPlot:
    """One workload, its rate against its x.

    ``name`` is the plot's: the kernel's own for the first, with the workload's behind it for the others.
    ``rows`` are the best configurations with the columns ``x`` and ``panel``; ``panels`` are the words of
    charts, with the numbers that tell two of them apart. ``is_log`` says that the rates need a logarithmic
    axis."""

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
        """What it draws."""
        return f"{self.kernel}, {self.workload}: {RATES[self.headline]} against {self.x_label}"

    def charts(self, machines: Sequence[Machine], styles: Mapping[str, Style], baseline: str) -> list[Chart]:
        """A chart for each panel and machine in which anything was measured; machines stand side by side."""
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
        """The ceiling of a chart's rows: a plain copy's rate, or a matrix product's by their arithmetic."""
        if ceilings is None:
            return []
        if self.headline == "gbps":
            copy = ceilings.copy_gbps
            return [Limit([(0, copy)], f"copy ceiling {number(copy)} GB/s")]
        peak = compute_ceiling(self.kernel, rows["problem"].iloc[-1], ceilings)
        return [] if peak is None else [Limit([(0, peak)], f"matmul ceiling {number(peak)} TFLOP/s")]


def _series(rows: pd.DataFrame, rate: str, styles: Mapping[str, Style], baseline: str) -> list[Series]:
    """A line a provider; the fastest is drawn last and lies on top."""
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
    """A measurement in words."""
    share, ratio = percent(row["ceiling_fraction"]), speedup(row["speedup"])
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
    """The workloads in which a kernel's rows were timed, and the ranks of their problems. Workloads may share
    problems, and rows of the one then belong to the other, too.

    The one with the most places on its x axis comes first, of two the first in the YAML. One whose problems
    are all another's is left out."""
    timed = rows[rows["status"] == "ok"]
    entry = None if timed.empty else entry_of(str(timed["kernel"].iloc[0]))
    listed = [] if entry is None else list(entry.config.workloads)
    order, ranks = {}, {}
    for workload, group in timed.groupby("workload"):
        name = str(workload)
        ranks[name] = frozenset(group["rank"])
        place = listed.index(name) if name in listed else len(listed)
        order[name] = (-group["x"].nunique(), -len(ranks[name]), place, name)
    found: dict[str, frozenset[int]] = {}
    for name in sorted(ranks, key=order.__getitem__):
        if not any(ranks[name] <= others for others in found.values()):
            found[name] = ranks[name]
    return found


def workload_plots(kernel: str, rows: pd.DataFrame, best: pd.DataFrame) -> list[WorkloadPlot]:
    """The plots of a kernel, from its rows and the best of them: one for each workload that was timed at two
    or more places of its x axis, all else being equal."""
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
    """Whether the fastest providers' rates along a line are too far apart to read the lowest of them."""
    fastest = shown[shown[rate] > 0].groupby(["gpu", "words", "family", "x"])[rate].max()
    of_lines = fastest.groupby(["gpu", "words", "family"])
    return bool((of_lines.max() > WIDE * of_lines.min()).any())


def leading(kernel: str, rows: pd.DataFrame, some: pd.DataFrame) -> pd.DataFrame:
    """Those of a machine's rows of problems with the same words that speak for all of them: at the kernel's
    first workload that they have any of, on the longest of its lines. What was pinned to be measured aside
    is not."""
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
    """Some of a kernel's rows with where each lies on the workload's x axis, the numbers that are fixed on
    its line and the line's ``family``; the dimension on the axis, and those that move along with it."""
    problems = rows[rows["workload"] == workload].drop_duplicates("rank")["problem"]
    points = [Point(kernel=kernel, provider="any", problem=problem) for problem in problems]
    x, along = lines.axis(workload, points)
    fixed = [_fixed(problem, {x, *along} if x else set(), x) for problem in some["problem"]]
    placed = some.assign(
        x=[problem[x] if x else 0 for problem in some["problem"]],
        fixed=pd.Series(fixed, index=some.index, dtype=object),
        family=[str(sorted(one.items())) for one in fixed],
    )
    return placed, x, along


def _fixed(problem: Values, moving: set[str], x: str | None) -> dict[str, int]:
    """A problem's numbers that do not move with the x axis; of one whose dimensions were pinned to differ all
    but ``x``."""
    numbers = {name: value for name, value in problem.items() if type(value) is int}
    if x and any(numbers.get(name) != numbers.get(x) for name in moving):
        moving = {x}
    return {name: value for name, value in numbers.items() if name not in moving}
