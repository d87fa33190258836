"""The rows of a comparison: conversion to and from its file, table and plot."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import geometric_mean
from types import MappingProxyType

from kernel_pipeline.statistics.verdicts import Estimate, Verdict

from ..points import notation
from ..store.comparisons import ComparisonRow
from .charts import RATIOS
from .numbers import number
from .tables import TextTable

COLOURS = {"same": "#656d76", "faster": "#009e73", "slower": "#d55e00", "undecided": "#9aa2ab"}

MOST_DRAWN = 120
"""The maximum number of ratios in a plot; more would be illegible."""

WIDE_RATIOS = 10
"""If the largest end of an interval is more than this many times the smallest, the axis is logarithmic."""


@dataclass(frozen=True)
class Compared:
    """A point on both sides, with times in microseconds.

    ``estimate`` is b's time over a's with its interval, and ``verdict`` judges b. ``changed`` names the
    differences between the launches.
    """

    problem: str
    a: str
    b: str
    a_us: float
    b_us: float
    estimate: Estimate
    verdict: Verdict
    changed: str = ""


def summary(found: Sequence[Compared]) -> str:
    """Return a sentence with the number of points by verdict and the geometric mean of the ratios."""
    counts = Counter(row.verdict for row in found)
    words = ", ".join(f"{counts[word]} {word}" for word in ("same", "faster", "slower", "undecided"))
    mean = geometric_mean([row.estimate.ratio for row in found])
    return f"{notation.points(len(found))}: b is {words}. Geometric mean of b / a: {mean:.4f}."


def moved(found: Sequence[Compared], by: float) -> list[str]:
    """Return a sentence for each provider and problem whose fastest configuration is another in b, and more
    than ``by`` faster there than the fastest configuration of a, by the medians of the rounds."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for row in found:
        groups.setdefault((row.b.partition(" ")[0], row.problem), []).append(row)
    sentences = []
    for (provider, problem), rows in groups.items():
        best, new = min(rows, key=lambda row: row.a_us), min(rows, key=lambda row: row.b_us)
        if best.b_us > new.b_us * (1 + by):
            old, now = (row.b.partition(" ")[2] for row in (best, new))
            sentences.append(
                f"The fastest configuration of {provider} at {problem} moved from {old} "
                f"({number(best.a_us)} us in a, {number(best.b_us)} us in b) to {now} "
                f"({number(new.b_us)} us in b)."
            )
    return sentences


def kept(row: Compared) -> ComparisonRow:
    """Return a row in the form of the comparison's file."""
    one = row.estimate
    shared = {
        name: getattr(row, name) for name in ("problem", "a", "b", "a_us", "b_us", "verdict", "changed")
    }
    high = one.high if isfinite(one.high) else None
    return ComparisonRow(**shared, rounds=one.rounds, ratio=one.ratio, low=one.low, high=high)


def from_kept(row: ComparisonRow) -> Compared:
    """Return a row of a comparison's file in the form that tables and plots take."""
    high = inf if row.high is None else row.high
    one = Estimate(row.rounds, row.ratio, row.low, high, 1.0)
    return Compared(row.problem, row.a, row.b, row.a_us, row.b_us, one, row.verdict, row.changed)


def table(
    rows: Sequence[Compared], title: str, same_code: Mapping[str, int] = MappingProxyType({})
) -> TextTable:
    """Return the table of the rows; a verdict other than ``same`` makes a row bold. ``same_code`` counts the
    points that were not timed, by provider."""
    return TextTable(
        title=title,
        columns=("problem", "a", "b", "a us", "b us", "b / a", "90 %", "b is"),
        rows=[
            [
                *(one.problem, one.a, one.b, number(one.a_us), number(one.b_us)),
                f"{one.estimate.ratio:.3f}",
                f"{one.estimate.low:.3f} to {one.estimate.high:.3f}" if isfinite(one.estimate.high) else "",
                "; ".join(filter(None, [one.verdict, one.changed])),
            ]
            for one in rows
        ]
        + [
            [notation.points(count), provider, provider, *[""] * 4, "same code"]
            for provider, count in same_code.items()
        ],
        numbers=("a us", "b us", "b / a"),
        strong=[place for place, one in enumerate(rows) if one.verdict != "same"],
    )


def plot(rows: Sequence[Compared], title: str, margin: float) -> bytes:
    """Return an SVG with a line for each ratio and its interval, and the margin as a band."""
    # Importing matplotlib takes a second, and most comparisons draw nothing.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter

    drawn = [one for one in rows if isfinite(one.estimate.high)][:MOST_DRAWN]
    figure = Figure(figsize=(8, 1.2 + 0.22 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(1 / (1 + margin), 1 + margin, color="#d8dee4", label=f"margin of {margin:.1%}")
    axes.axvline(1, color="#656d76", linewidth=0.8)
    for place, one in enumerate(drawn):
        colour = COLOURS[one.verdict]
        axes.plot([one.estimate.low, one.estimate.high], [place, place], color=colour, linewidth=1.5)
        axes.plot([one.estimate.ratio], [place], "o", color=colour, markersize=3.5)
    ends = [end for one in drawn for end in (one.estimate.low, one.estimate.high)]
    if min(ends, default=1) > 0 and max(ends, default=1) > WIDE_RATIOS * min(ends, default=1):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(RATIOS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(drawn)), [f"{one.b} {one.problem}" for one in drawn], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time of b / time of a, with its 90 % interval")
    axes.set_title(title, fontsize=9, loc="left", parse_math=False)
    axes.legend(fontsize=7, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
