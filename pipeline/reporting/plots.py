"""Plots of a rate against a workload's x: a column a machine, a line a provider, the measured ceiling too.

A provider's colour says what it is written in, and is the same in every plot and table of a report. The
bytes of a plot follow from its numbers alone.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pipeline.reporting.drawings import Drawing
from pipeline.reporting.numbers import GAP, RATES, number
from pipeline.reporting.shares import compute_ceiling
from pipeline.store.ceilings import Ceilings

INK, MUTED, GRID, PAPER = "#1f2328", "#656d76", "#d8dee4", "#ffffff"
"""Text, lesser text, grid lines and background on paper; a page names its own instead (``inline``)."""

FAMILIES: dict[str, tuple[tuple[str, str], ...]] = {
    "torch": (
        ("#0072b2", "#4aa8e8"),
        ("#56b4e9", "#a6dcff"),
        ("#1b3a6b", "#7c95d6"),
        ("#3f8f9f", "#5fb9c9"),
        ("#8295b5", "#b4c1da"),
    ),
    "triton": (("#d55e00", "#ff8433"), ("#e69f00", "#ffc445"), ("#8c2d04", "#d9795a")),
    "cuda": (("#009e73", "#2fd0a2"), ("#6fc3a0", "#a5ecd0"), ("#00594a", "#4f9c8b")),
    "cpp": (("#cc79a7", "#e79ac6"), ("#8e4585", "#bf7ab6")),
    "numba": (("#8a8f00", "#d3d94a"),),
    "": (("#57606a", "#a5aeb8"), ("#9aa2ab", "#d0d6dc"), ("#24292f", "#818b96")),
}
"""Colours on light and on dark by the first word of a provider's name, after Okabe and Ito, whose hues
most colour-blind people tell apart; within a family lightness, marker and dashes differ too."""

HEADROOM = 1.13
"""Above the highest line, for the text of a limit."""

LONG_TITLE = 50
"""Letters of a title that two panels side by side have room for."""

MARKERS = "os^Dv"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))


@dataclass(frozen=True)
class Style:
    """How a provider is drawn; ``name`` is that of its colour in a page's style sheet."""

    name: str
    light: str
    dark: str
    marker: str
    dashes: Any


def styles(providers: Iterable[str]) -> dict[str, Style]:
    """A style for each provider, the families in their fixed order."""
    by_family: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for provider in sorted(set(providers)):
        first = provider.split("_")[0]
        by_family[first if first in FAMILIES else ""].append(provider)
    found = {}
    for family, members in by_family.items():
        for i, provider in enumerate(members):
            light, dark = FAMILIES[family][i % len(FAMILIES[family])]
            name = f"{family or 'other'}-{i % len(FAMILIES[family])}"
            found[provider] = Style(name, light, dark, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
    return found


@dataclass(frozen=True)
class Panel:
    """What a machine's panels are titled with and measured against."""

    gpu: str
    name: str
    ceilings: Ceilings | None


@dataclass(frozen=True)
class Limit:
    """A measured ceiling as a plot draws it."""

    rate: float
    text: str


def limit(drawing: Drawing, panel: Panel, rows: pd.DataFrame) -> Limit | None:
    """The ceiling of a panel's rows: a plain copy's rate, or a matrix product's by their arithmetic."""
    unit = RATES[drawing.headline]
    if panel.ceilings is None or rows.empty:
        return None
    if drawing.headline == "gbps":
        copy = panel.ceilings.copy_gbps
        return Limit(copy, f"copy ceiling {number(copy)} {unit}")
    found = compute_ceiling(drawing.kernel, rows["problem"].iloc[-1], panel.ceilings)
    return None if found is None else Limit(found, f"matmul ceiling {number(found)} {unit}")


def rate_against_x(drawing: Drawing, panels: Sequence[Panel], style: Mapping[str, Style]) -> str:
    """A workload's rate against its x as SVG: a column a machine, a row for each of the drawing's panels,
    each provider at its best configuration.

    Each machine has its own scale, shared by those of its panels that have the same ceiling, which is thus at
    much the same height in all.
    """
    rows, columns = len(drawing.panels), len(panels)
    width = {1: 6.6, 2: 9.6, 3: 11.7}.get(columns, 3.5 * columns)
    # All settings are matplotlib's own plus these, whatever the user's matplotlibrc says.
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings(drawing.name))
        figure = Figure(figsize=(width, 0.75 + 2.75 * rows), layout=ConstrainedLayoutEngine(h_pad=0.1))
        figure.set_gid(f"plot-{drawing.name}")
        grid = figure.subplots(rows, columns, squeeze=False)
        for column, panel in enumerate(panels):
            of_machine = drawing.lines[drawing.lines["gpu"] == panel.gpu]
            shown = {name: of_machine[of_machine["panel"] == name] for name in drawing.panels}
            limits = {name: limit(drawing, panel, some) for name, some in shown.items()}
            for row, name in enumerate(drawing.panels):
                axes = grid[row, column]
                axes.set_gid(f"panel-{drawing.name}-{panel.gpu}-{plain(name)}")
                title(axes, panel.name, name)
                alike = [
                    one[drawing.headline] for other, one in shown.items() if limits[other] == limits[name]
                ]
                ceiling = limits[name]
                rates = pd.concat(alike)
                _y_axis(axes, [*rates, *([ceiling.rate] if ceiling else [])], is_log=drawing.is_log)
                _draw(axes, shown[name], drawing.headline, ceiling, style)
                _x_axis(axes, drawing.lines.loc[drawing.lines["panel"] == name, "x"].unique())
                if row == rows - 1:
                    axes.set_xlabel(drawing.x_label)
                if column == 0:
                    axes.set_ylabel(RATES[drawing.headline])
        legend(figure, [p for p in style if p in set(drawing.lines["provider"])], style, width)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return out.getvalue()


def title(axes: Any, *parts: str) -> None:
    """A panel's title, on two lines if it is long; a dollar in it begins no formula."""
    *first, last = filter(None, parts)
    text = " · ".join([*first, last])
    axes.set_title(text if len(text) <= LONG_TITLE else f"{' · '.join(first)}\n{last}", parse_math=False)


def plain(text: str) -> str:
    """A text as a part of an element's id."""
    return re.sub(r"[^\w.=-]+", "-", text)


def inline(svg: str, style: Mapping[str, Style], description: str) -> str:
    """A plot as an element of a page, with the page's colours and font, no id but those that it refers to,
    and no more decimals than a screen shows."""
    svg = re.sub(r"<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*(; )?", "", re.sub(r">\s+<", "><", svg))
    svg = re.sub(r"\s*\n\s*", " ", re.sub(r' transform="rotate\(-0 [^"]*"| xmlns:xlink="[^"]*"', "", svg))
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"\d+\.\d{2,}", lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), svg)
    used = set(re.findall(r"#([\w.-]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    names = {INK: "ink", MUTED: "muted", GRID: "line", PAPER: "paper"}
    names |= {one.light: one.name for one in style.values()}
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{names[m[0]]})" if m[0] in names else m[0], svg)
    svg = re.sub(r' style="[^"]*"', lambda match: re.sub(r"([:;]) ", r"\1", match[0]), _without_groups(svg))
    return svg.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1).strip()


def _without_groups(svg: str) -> str:
    """The same without groups that say nothing."""
    kept: list[bool] = []

    def of(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] * kept.pop()
        kept.append(tag[0] != "<g>")
        return tag[0] * kept[-1]

    return re.sub(r"<g>|<g [^>]*[^/]>|</g>", of, svg)


def settings(name: str) -> dict[str, Any]:
    """What is matplotlib's own to know: text stays text, and ids follow from the figure's name."""
    return {
        "svg.hashsalt": name,
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


def _draw(
    axes: Any,
    rows: pd.DataFrame,
    rate: str,
    ceiling: Limit | None,
    style: Mapping[str, Style],
) -> None:
    """One panel."""
    if ceiling is not None:
        axes.axhline(ceiling.rate, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            ceiling.text,
            (0.01, ceiling.rate),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    if rows.empty:
        axes.annotate(GAP, (0.5, 0.4), xycoords="axes fraction", ha="center", color=MUTED)
    # The fastest is drawn last and lies on top. Points at a single place stand side by side.
    order = rows.groupby("provider")[rate].median().sort_values().index
    single = rows["x"].nunique() == 1
    for i, provider in enumerate(order):
        line = rows[rows["provider"] == provider].sort_values("x")
        shift = 2 ** (0.5 * ((i + 0.5) / len(order) - 0.5)) if single else 1
        look = style[str(provider)]
        axes.plot(line["x"] * shift, line[rate], color=look.light, linestyle=look.dashes)
        for distrusted, points in line.groupby(line["valid"].eq(False)):
            axes.plot(
                points["x"] * shift,
                points[rate],
                linestyle="none",
                marker=look.marker,
                color=look.light,
                markeredgecolor=look.light if distrusted else PAPER,
                markerfacecolor=PAPER if distrusted else look.light,
                markeredgewidth=1.2 if distrusted else 0.6,
            )


def _y_axis(axes: Any, rates: Sequence[float], *, is_log: bool) -> None:
    """An axis of rates, with room above the highest for the text of a ceiling."""
    if is_log and any(rate > 0 for rate in rates):
        first, last = log_ends(rates)
        axes.set_yscale("log")
        axes.set_ylim(first, last)
        axes.yaxis.set_major_locator(FixedLocator(log_ticks(first, last)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    axes.set_ylim(0, HEADROOM * max(rates, default=0) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def log_ends(rates: Sequence[float]) -> tuple[float, float]:
    """The ends of a logarithmic axis of rates, those of 0 left out, with room for a text above."""
    first, last = min(rate for rate in rates if rate > 0) / 1.4, max(rates)
    return first, last * (last / first) ** 0.08


def log_ticks(first: float, last: float) -> list[float]:
    """The powers of ten on a logarithmic axis."""
    return [10.0**power for power in range(math.ceil(math.log10(first)), math.floor(math.log10(last)) + 1)]


def _x_axis(axes: Any, values: Iterable[int]) -> None:
    """A log2 axis with ticks at measured values; one that is not all above 0 is as it is."""
    ordered = sorted(int(value) for value in values)
    if ordered[0] <= 0:
        return
    axes.set_xscale("log", base=2)
    axes.set_xlim(ordered[0] / 2**0.4, ordered[-1] * 2**0.4)
    axes.xaxis.set_major_locator(FixedLocator(x_ticks(ordered)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))


def x_ticks(ordered: Sequence[int]) -> list[int]:
    """Of values above 0, the smallest first, those that a log2 axis names: as many as can be read."""
    apart = math.log2(ordered[-1] / ordered[0]) / 6
    ticks = [ordered[-1]]
    for value in reversed(ordered):
        if math.log2(ticks[-1] / value) >= max(apart, 0.4):
            ticks.append(value)
    return ticks


def legend(figure: Any, providers: Sequence[str], style: Mapping[str, Style], width: float) -> None:
    """One legend for all panels, below them, in as many columns as the ``width`` in inches has room for."""
    count = next(
        (count for count in range(len(providers), 1, -1) if _legend_inches(providers, count) <= width), 1
    )
    handles = []
    for provider in providers:
        look = style[provider]
        line = Line2D([], [], color=look.light, linestyle=look.dashes, marker=look.marker, label=provider)
        line.set_markeredgecolor(PAPER)
        line.set_markeredgewidth(0.6)
        handles.append(line)
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=count,
        frameon=False,
        handlelength=3.2,
        labelcolor=INK,
    )


def _legend_inches(names: Sequence[str], columns: int) -> float:
    """How wide a legend is: of each column the longest name, and its line."""
    lines = math.ceil(len(names) / columns)
    longest = [max(map(len, names[first : first + lines])) for first in range(0, len(names), lines)]
    return sum(0.75 + 0.082 * letters for letters in longest)
