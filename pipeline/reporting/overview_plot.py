"""The overview as a plot: our fastest beside each kernel's baseline, and how near it comes to the ceiling.

A line a kernel and its problems' words, as in the overview's table; a mark a machine.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pipeline.reporting.charts import GRID, INK, MUTED, PAPER, RATIOS, SHAPES, Style
from pipeline.reporting.numbers import GAP, percent, speedup
from pipeline.reporting.overview import Summary

STYLES = tuple(
    Style(f"machine-{place}", light, dark, list(SHAPES)[place % len(SHAPES)])
    for place, (light, dark) in enumerate(
        (
            *(("#0072b2", "#4aa8e8"), ("#d55e00", "#ff8433"), ("#009e73", "#2fd0a2")),
            *(("#cc79a7", "#e79ac6"), ("#e69f00", "#ffc445"), ("#57606a", "#a5aeb8")),
        )
    )
)
"""How machines are drawn, one after the other; colours after Okabe and Ito."""

MARGIN = 0.16
"""The share of the axis of ratios, in logarithms, by which it goes beyond its outermost ratios: a text's
width."""


def overview_plot(some: Sequence[Summary], machines: Mapping[str, str]) -> str:
    """The plot as SVG; empty where there is nothing to show. ``machines`` are names by slug."""
    lines = sorted({(one.kernel, one.words) for one in some})
    if not lines:
        return ""
    here = [slug for slug in machines if slug in {one.gpu for one in some}]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings())
        height = max(0.27, 0.17 * len(here)) * len(lines)
        figure = Figure(figsize=(8.4, 1.1 + height), layout=ConstrainedLayoutEngine(h_pad=0.08))
        figure.set_gid("overview")
        left, right = figure.subplots(1, 2, sharey=True)
        for axes in (left, right):
            axes.grid(visible=False, axis="y")
            axes.grid(visible=True, axis="x")
        left.set_ylim(len(lines) - 0.4, -0.6)
        names = [" ".join(filter(None, line)) for line in lines]
        left.set_yticks(range(len(lines)), names, parse_math=False)
        _ratios(left, [one.speedup for one in some])
        _shares(right, [one.ceiling_fraction or 0 for one in some])
        for line, slug in itertools.product(lines, here):
            if (*line, slug) not in {(one.kernel, one.words, one.gpu) for one in some}:
                _gap(left, lines.index(line) + 0.8 * ((here.index(slug) + 0.5) / len(here) - 0.5))
        for one in some:
            place = here.index(one.gpu)
            y = lines.index((one.kernel, one.words)) + 0.8 * ((place + 0.5) / len(here) - 0.5)
            ratio = speedup(one.speedup) + "!" * bool(one.doubts)
            _mark(left, (1, one.speedup), y, ratio, place)
            if one.ceiling_fraction is not None:
                _mark(right, (0, one.ceiling_fraction), y, percent(one.ceiling_fraction), place)
        legend = figure.legend(
            handles=[Line2D([], [], label=machines[slug], **_look(place)) for place, slug in enumerate(here)],
            loc="outside lower left",
            ncols=min(len(here), 3),
            frameon=False,
            handlelength=0.8,
            labelcolor=INK,
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return out.getvalue()


def _ratios(axes: Any, found: Sequence[float]) -> None:
    """An axis of ratios about 1, on which twice and half are as far away."""
    axes.set_title("times as fast as the baseline")
    axes.set_xscale("log", base=2)
    least, most = min(0.8, *found), max(1.25, *found)
    room = max(most / least, 4.0) ** MARGIN
    axes.set_xlim(least / room, most * room)
    axes.xaxis.set_major_locator(FixedLocator(RATIOS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _shares(axes: Any, found: Sequence[float]) -> None:
    axes.set_title("share of the measured ceiling")
    axes.set_xlim(0, 1.2 * max(1.0, *found))
    axes.xaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.tick_params(axis="y", length=0)


def _look(place: int) -> dict[str, Any]:
    """How a machine is drawn, by its place among all."""
    style = STYLES[place % len(STYLES)]
    return {
        "color": style.light,
        "marker": style.marker,
        "linestyle": "none",
        "markersize": 6,
        "markeredgecolor": PAPER,
        "markeredgewidth": 0.6,
    }


def _gap(axes: Any, y: float) -> None:
    """That a machine has no number on a line."""
    axes.annotate(
        GAP,
        (1, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color=MUTED,
    )


def _mark(axes: Any, reach: tuple[float, float], y: float, text: str, place: int) -> None:
    """A line from where the axis begins to a value, a mark there, and its text on the far side."""
    begin, value = reach
    look = _look(place)
    axes.plot(reach, (y, y), color=look["color"], linewidth=1.6)
    axes.plot([value], [y], **look)
    is_less = value < begin
    axes.annotate(
        text,
        (value, y),
        xytext=(-6 if is_less else 6, 0),
        textcoords="offset points",
        ha="right" if is_less else "left",
        va="center",
        fontsize=8,
        color=INK,
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
    )


def _settings() -> dict[str, Any]:
    """matplotlib's settings: text stays text, and the bytes follow from the numbers alone."""
    return {
        "svg.hashsalt": "overview",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.titlecolor": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "ytick.left": False,
        "text.color": INK,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
    }
