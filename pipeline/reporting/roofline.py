"""Roofline plots: how fast providers compute against how often they use a byte, below the measured ceilings.

After Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullLocator

from pipeline.reporting.frames import best_providers
from pipeline.reporting.numbers import GAP, number
from pipeline.reporting.plots import INK, MUTED, Panel, Style, legend, plain, settings, title
from pipeline.reporting.shares import compute_ceiling
from pipeline.store.ceilings import Rates
from pipeline.store.evidence import CounterRow

APART = 2
"""How many times as many flops a byte one problem of a plot needs at least as another."""


@dataclass(frozen=True)
class RooflinePoint:
    """The fastest provider at a problem: flops a byte, TFLOP/s, and whether the bytes
    were counted by the device, or are the fewest that the operation needs."""

    provider: str
    intensity: float
    tflops: float
    counted: bool


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


def marks(rows: pd.DataFrame, counted: Mapping[str, float]) -> list[RooflinePoint]:
    """The marks of one machine's rows that compute anything; ``counted`` are the bytes that
    the device moved, by key."""
    found = []
    for row in rows.to_dict("records"):
        moved = counted.get(row["key"])
        moved_at_least = moved or row["bytes"]
        if row["flops"] and moved_at_least > 0:  # a logarithm has no place for others
            intensity = row["flops"] / moved_at_least
            found.append(RooflinePoint(row["provider"], intensity, row["tflops"], bool(moved)))
    return found


def roofline(
    kernel: str,
    best: pd.DataFrame,
    panels: Sequence[Panel],
    counted: Mapping[str, Mapping[str, float]],
    style: Mapping[str, Style],
) -> str:
    """The plot as SVG: a column a machine, a row for each of the problems' words, and a mark for the fastest
    provider at each problem. Filled marks stand at the bytes that the kernel needs at least, hollow ones at
    those that the device counted.

    Empty where no problem is apart from the others: all marks above one x say no more than their shares of
    the ceiling do. Words of which that is so have no row."""
    fastest = best_providers(best).sort_values("rank")
    found = {
        (panel.gpu, name): marks(here, counted.get(panel.gpu, {}))
        for panel in panels
        for name in fastest["words"].unique()
        if not (here := fastest[(fastest["gpu"] == panel.gpu) & (fastest["words"] == name)]).empty
    }
    apart = {name for (_, name), some in found.items() if _are_apart(some)}
    words = [name for name in fastest["words"].unique() if name in apart]
    if not words:
        return ""
    rows, columns = len(words), len(panels)
    width = {1: 6.6, 2: 9.6, 3: 11.7}.get(columns, 3.5 * columns)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings(f"roofline-{kernel}"))
        figure = Figure(figsize=(width, 0.75 + 2.75 * rows), layout=ConstrainedLayoutEngine(h_pad=0.1))
        figure.set_gid(f"roofline-{kernel}")
        grid = figure.subplots(rows, columns, squeeze=False)
        for column, panel in enumerate(panels):
            for row, name in enumerate(words):
                axes = grid[row, column]
                axes.set_gid(f"roofline-{kernel}-{panel.gpu}-{plain(name)}")
                title(axes, panel.name, name)
                problem = fastest.loc[fastest["words"] == name, "problem"].iloc[-1]
                peak = compute_ceiling(kernel, problem, panel.ceilings)
                _draw(axes, found.get((panel.gpu, name), ()), panel.ceilings, peak, style)
                if row == rows - 1:
                    axes.set_xlabel("flops a byte of device memory")
                if column == 0:
                    axes.set_ylabel("TFLOP/s")
        shown = {mark.provider for (_, name), some in found.items() if name in apart for mark in some}
        legend(figure, [name for name in style if name in shown], style, width)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return out.getvalue()


def _are_apart(some: Sequence[RooflinePoint]) -> bool:
    """Whether marks lie at places of the x axis that can be told apart."""
    places = [mark.intensity for mark in some]
    return bool(places) and max(places) > APART * min(places)


def _draw(
    axes: Any,
    found: Sequence[RooflinePoint],
    ceilings: Rates | None,
    peak: float | None,
    style: Mapping[str, Style],
) -> None:
    """One panel: the roof, flat at the ``peak`` of the problem's arithmetic where that is known, and the
    marks below it."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(visible=True, which="major", axis="both")
    lowest, highest = (0.05, 2.0)
    if found:
        lowest = min(lowest, min(mark.intensity for mark in found) / 3)
        highest = max(highest, max(mark.intensity for mark in found) * 3)
    if ceilings is not None:
        slope = ceilings.copy_gbps / 1e3
        knee = None if peak is None else peak / slope
        highest = max(highest, 3 * knee) if knee else highest
        roof = sorted({lowest, highest, *([knee] if knee else [])})
        heights = [min(slope * x, peak) if peak else slope * x for x in roof]
        axes.plot(roof, heights, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        text = f"copy {number(ceilings.copy_gbps)} GB/s" + (
            f", matmul {number(peak)} TFLOP/s" if peak else ""
        )
        axes.annotate(text, (0.02, 0.96), xycoords="axes fraction", va="top", fontsize=8, color=INK)
    if not found:
        axes.annotate(GAP, (0.6, 0.2), xycoords="axes fraction", ha="center", color=MUTED)
    for mark in found:
        look = style[mark.provider]
        axes.plot(
            [mark.intensity],
            [mark.tflops],
            linestyle="none",
            marker=look.marker,
            color=look.light,
            markerfacecolor="none" if mark.counted else look.light,
            markersize=7,
        )
    axes.set_xlim(lowest, highest)
