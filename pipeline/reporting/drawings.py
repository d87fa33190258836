"""What a report draws of a kernel: a figure a workload, and which points lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.reporting import lines
from pipeline.reporting.frames import entry_of, headline

WIDE = 40
"""How many times as high as the lowest the highest rate is on an axis that has to be logarithmic."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """One workload, its rate against its x.

    ``name`` is the figure's: the kernel's own for the first, with the workload's behind it for the others.
    ``lines`` are the best configurations with the columns ``x`` and ``panel``; ``panels`` are the words of
    its rows of panels, with the numbers that tell two of them apart. ``is_log`` says that the rates need a
    logarithmic axis."""

    name: str
    kernel: str
    workload: str
    headline: str
    x_label: str
    panels: Sequence[str]
    lines: pd.DataFrame
    is_log: bool


def of_workloads(rows: pd.DataFrame) -> dict[str, frozenset[int]]:
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


def drawings(kernel: str, rows: pd.DataFrame, best: pd.DataFrame) -> list[Drawing]:
    """The figures of a kernel, from its rows and the best of them: one for each workload that was timed at
    two or more places of its x axis, all else being equal."""
    found: list[Drawing] = []
    for workload, ranks in of_workloads(rows).items():
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
        found.append(
            Drawing(
                name=f"{kernel}-{workload}" if found else kernel,
                kernel=kernel,
                workload=workload,
                headline=headline(kernel, workload),
                x_label=" = ".join(moving) + (f" ({' '.join(alike)})" if alike else ""),
                panels=list(dict.fromkeys(panel)),
                lines=shown.drop(columns=["family", "fixed"]).assign(panel=panel),
                is_log=_is_wide(shown, headline(kernel, workload)),
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
    for workload, ranks in of_workloads(rows).items():
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
    x, along = lines.axis(workload, [_point(kernel, problem) for problem in problems])
    fixed = [_fixed(problem, {x, *along} if x else set(), x) for problem in some["problem"]]
    placed = some.assign(
        x=[problem[x] if x else 0 for problem in some["problem"]],
        fixed=pd.Series(fixed, index=some.index, dtype=object),
        family=[str(sorted(one.items())) for one in fixed],
    )
    return placed, x, along


def _point(kernel: str, problem: Values) -> Point:
    return Point(kernel=kernel, provider="any", problem=problem)


def _fixed(problem: Values, moving: set[str], x: str | None) -> dict[str, int]:
    """A problem's numbers that do not move with the x axis; of one whose dimensions were pinned to differ all
    but ``x``."""
    numbers = {name: value for name, value in problem.items() if type(value) is int}
    if x and any(numbers.get(name) != numbers.get(x) for name in moving):
        moving = {x}
    return {name: value for name, value in numbers.items() if name not in moving}
