"""Charts of a page: lines over an x axis as SVG, each mark with the numbers that stand behind it.

A chart is drawn here and not by the page's script: it is there without one, and it takes the page's colours.
The script shows a mark's text beside a pointer and hides the lines that a reader does not ask for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from pipeline.reporting.drawings import Drawing
from pipeline.reporting.numbers import RATES, microseconds, number, percent, speedup
from pipeline.reporting.plots import HEADROOM, Limit, Panel, Style, limit, log_ends, log_ticks, x_ticks
from pipeline.reporting.ranking import is_bound

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 26, 40
"""Of a chart, in its own units; the margins hold the axes' texts."""

SHAPES = {
    "o": ("circle", "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0"),
    "s": ("box", "M-3.2-3.2H3.2V3.2H-3.2Z"),
    "^": ("up", "M0-4L4 3.4H-4Z"),
    "D": ("diamond", "M0-4.4L4.4 0L0 4.4L-4.4 0Z"),
    "v": ("down", "M0 4L4-3.4H-4Z"),
}
"""Names and paths of a style's markers, around their middle. A page has each path once."""


@dataclass(frozen=True)
class Mark:
    """A point of a line, and what is said of it."""

    x: float
    y: float
    text: str
    distrusted: bool = False


@dataclass(frozen=True)
class Series:
    """Marks that belong together. ``provider`` is empty for a line that is not one provider's."""

    name: str
    style: Style
    marks: Sequence[Mark]
    provider: str = ""


@dataclass(frozen=True)
class Chart:
    """Lines over one x axis, below or about dashed limits. ``gpus`` and ``words`` say whose they are."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Series]
    gpus: Sequence[str]
    words: str
    limits: Sequence[Limit] = field(default_factory=tuple)
    is_log: bool = False

    @property
    def view(self) -> dict[str, Any]:
        """What the template draws: positions, to a tenth."""
        xs = sorted({mark.x for line in self.lines for mark in line.marks})
        ys = [mark.y for line in self.lines for mark in line.marks]
        down = _Down([*ys, *(one.rate for one in self.limits)], self.is_log)
        across = _Across(xs)
        named = [int(x) for x in xs] if xs[0] > 0 else []
        return {
            "title": self.title,
            "description": f"{self.title}: {self.y_label} against {self.x_label}",
            "gpus": " ".join(self.gpus),
            "words": self.words,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT}
            | {"top": TOP, "bottom": HEIGHT - BOTTOM},
            "x_ticks": [(across(x), str(x)) for x in (x_ticks(named) if named else xs)],
            "y_ticks": [(down(y), text) for y, text in zip(down.ticks, down.texts, strict=True)],
            "limits": [(down(one.rate), one.text) for one in self.limits],
            "lines": [
                {
                    "name": line.name,
                    "provider": line.provider,
                    "style": line.style.name,
                    "dashes": _dashes(line.style),
                    "path": "M" + "L".join(f"{across(mark.x)} {down(mark.y)}" for mark in line.marks),
                    "shape": SHAPES[line.style.marker][0],
                    "marks": [
                        {"x": across(mark.x), "y": down(mark.y), "text": mark.text, "hollow": mark.distrusted}
                        for mark in line.marks
                    ],
                }
                for line in self.lines
            ],
        }


def of_drawing(
    drawing: Drawing, panels: Sequence[Panel], styles: Mapping[str, Style], baseline: str
) -> list[Chart]:
    """A workload's rate against its x: a chart for each of the drawing's panels and each machine in which
    anything was measured; machines stand side by side."""
    found = []
    for name in drawing.panels:
        of_panel = drawing.lines[drawing.lines["panel"] == name]
        for panel in panels:
            rows = of_panel[of_panel["gpu"] == panel.gpu]
            if rows.empty:
                continue
            ceiling = limit(drawing, panel, rows)
            found.append(
                Chart(
                    title=" · ".join(filter(None, [panel.name, name])),
                    x_label=drawing.x_label.partition(" (")[0],
                    y_label=RATES[drawing.headline],
                    lines=_of_providers(rows, drawing.headline, styles, baseline),
                    gpus=(panel.gpu,),
                    words=str(rows["words"].iloc[0]),
                    limits=() if ceiling is None else (ceiling,),
                    is_log=drawing.is_log,
                )
            )
    return found


def _of_providers(rows: pd.DataFrame, rate: str, styles: Mapping[str, Style], baseline: str) -> list[Series]:
    """A line a provider; the fastest is drawn last and lies on top."""
    found = []
    for provider in rows.groupby("provider")[rate].median().sort_values().index:
        line = rows[rows["provider"] == provider].sort_values("x")
        marks = [
            Mark(row["x"], row[rate], _said(row, rate, baseline), row["valid"] is False)
            for row in line.to_dict("records")
        ]
        found.append(Series(str(provider), styles[str(provider)], marks, str(provider)))
    return found


def _said(row: Mapping[Any, Any], rate: str, baseline: str) -> str:
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


class _Across:
    """Where an x lies: on a log2 axis if all are above 0."""

    def __init__(self, ordered: Sequence[float]) -> None:
        self.log = ordered[0] > 0
        first, last = self._scaled(ordered[0]), self._scaled(ordered[-1])
        margin = 0.4 if self.log or first == last else 0.05 * (last - first)
        self.first, self.last = first - margin, last + margin

    def _scaled(self, x: float) -> float:
        return math.log2(x) if self.log else float(x)

    def __call__(self, x: float) -> float:
        share = (self._scaled(x) - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


class _Down:
    """Where a y lies: above 0, or on a logarithmic axis."""

    def __init__(self, values: Sequence[float], is_log: bool) -> None:
        self.log = is_log
        if is_log:
            first, last = log_ends(values)
            self.first, self.last = math.log10(first), math.log10(last)
            self.ticks = log_ticks(first, last)
        else:
            self.first, self.last = 0.0, HEADROOM * max(values) or 1.0
            ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, self.last)
            self.ticks = [float(tick) for tick in ticks if 0 <= tick <= self.last]

    @property
    def texts(self) -> list[str]:
        """The ticks in words: all to the same digit, but for powers of ten."""
        shortest = [f"{tick:g}" for tick in self.ticks]
        digits = max((len(text.partition(".")[2]) for text in shortest), default=0)
        return shortest if self.log else [f"{tick:.{digits}f}" for tick in self.ticks]

    def __call__(self, y: float) -> float:
        scaled = math.log10(y) if self.log and y > 0 else self.first if self.log else y
        share = (scaled - self.first) / (self.last - self.first)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)


def _dashes(style: Style) -> str:
    """A style's dashes as SVG has them; empty for a whole line."""
    if isinstance(style.dashes, str):
        return ""
    return " ".join(f"{2 * length:g}" for length in style.dashes[1])
