"""Ladders: how fast each provider of a kernel is at one problem, from the slowest to the fastest, a panel a
machine. They show what each step of a way gives."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from pipeline.reporting.numbers import RATES, number
from pipeline.reporting.plots import PAPER, Panel, Style, plain, settings, title

LEAST = 3
"""Providers that make a ladder."""


def rungs(best: pd.DataFrame) -> pd.DataFrame:
    """The rows of the problem at which the most providers of a kernel were timed, of several the last; empty
    where these are fewer than ``LEAST``. ``best`` has a row for each provider, problem and machine."""
    timed = best.groupby("rank")["provider"].nunique()
    if timed.empty or timed.max() < LEAST:
        return best.iloc[:0]
    found: pd.DataFrame = best[best["rank"] == timed[timed == timed.max()].index[-1]]
    return found


def ladder(kernel: str, rows: pd.DataFrame, panels: Sequence[Panel], style: Mapping[str, Style]) -> str:
    """The plot of one problem's rows as SVG: a bar a provider, as long as its rate, a column a machine."""
    rate = str(rows["headline"].iloc[0])
    here = [panel for panel in panels if panel.gpu in set(rows["gpu"])]
    width = {1: 6.6, 2: 9.6, 3: 11.7}.get(len(here), 3.5 * len(here))
    most = max(int((rows["gpu"] == panel.gpu).sum()) for panel in here)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings(f"ladder-{kernel}"))
        figure = Figure(figsize=(width, 0.9 + 0.24 * most), layout=ConstrainedLayoutEngine(h_pad=0.1))
        figure.set_gid(f"ladder-{kernel}")
        for axes, panel in zip(figure.subplots(1, len(here), squeeze=False)[0], here, strict=True):
            of_machine = rows[rows["gpu"] == panel.gpu].sort_values([rate, "provider"])
            axes.set_gid(f"ladder-{kernel}-{plain(panel.gpu)}")
            title(axes, panel.name, str(rows["words"].iloc[0]), str(rows["extent"].iloc[0]))
            _draw(axes, of_machine, rate, style)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return out.getvalue()


def _draw(axes: Any, rows: pd.DataFrame, rate: str, style: Mapping[str, Style]) -> None:
    """One panel, the slowest at the top."""
    places = range(len(rows), 0, -1)
    colours = [style[provider].light for provider in rows["provider"]]
    axes.barh(places, rows[rate], color=colours, edgecolor=PAPER, height=0.8)
    axes.set_yticks(places, rows["provider"])
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel(RATES[rate])
    axes.set_xlim(0, 1.15 * rows[rate].max() or 1)
    for place, value in zip(places, rows[rate], strict=True):
        axes.annotate(
            number(value),
            (value, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
