"""The ratios of a comparison and their intervals as a plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import isfinite

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from pipeline.reporting.ratios import Compared

COLOURS = {"same": "#656d76", "faster": "#009e73", "slower": "#d55e00", "undecided": "#9aa2ab"}

MOST_DRAWN = 120
"""Ratios in a plot at most; a plot of more would not be read."""

RATIOS = tuple(2.0**power for power in range(-7, 8))
"""Where a logarithmic axis of ratios has ticks, as far as it goes."""

WIDE_RATIOS = 10
"""How many times the least of some ratios the greatest is on an axis that has to be logarithmic."""


def plot(rows: Sequence[Compared], title: str, margin: float) -> bytes:
    """SVG: each ratio with its interval, a row each, and the margin as a band."""
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
