"""GPU against GPU as the report shows it: a line a bound, and a table and charts a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.points import notation
from pipeline.reporting.charts import Chart, Mark, Series
from pipeline.reporting.content import Plot
from pipeline.reporting.gpus import CommonProblem, GpuGroup, OtherSources
from pipeline.reporting.numbers import number, speedup
from pipeline.reporting.plots import Limit, Style
from pipeline.reporting.ratio_plot import WIDE_RATIOS

NOTHING_IN_COMMON = "No two GPUs have measured the same problem with the same source of a provider."

STYLE = Style("pair", "#0072b2", "#4aa8e8", "o", "-")
"""How a pair of GPUs is drawn."""


def _cells(one: CommonProblem) -> list[str]:
    """The cells that both tables share: the ratio, that of the ceilings, the cost of the other's best."""
    return [speedup(one.ratio), speedup(one.by_ceilings), speedup(one.a_on_b), speedup(one.b_on_a)]


def overview(some: Sequence[GpuGroup], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A line a pair and bound."""
    return [
        {
            "gpus": f"{one.a} {one.b}",
            "a": names[one.a],
            "b": names[one.b],
            "bound": one.bound,
            "kernels": ", ".join(one.kernels),
            "problems": one.problems,
            "cells": [speedup(one.ratio), speedup(one.by_ceilings)],
        }
        for one in some
    ]


def left_out(some: Sequence[OtherSources], names: Mapping[str, str]) -> list[str]:
    """A sentence a pair: at how many problems of which kernels nothing can be compared."""
    found: dict[tuple[str, str], list[OtherSources]] = {}
    for one in some:
        found.setdefault((one.a, one.b), []).append(one)
    return [
        f"Not comparable on {names[a]} and {names[b]}: other sources. "
        + ", ".join(f"{one.kernel} ({notation.plural(one.problems, 'problem')})" for one in group)
        + "."
        for (a, b), group in found.items()
    ]


def alone(common: Sequence[CommonProblem], rows: pd.DataFrame, names: Mapping[str, str]) -> str:
    """The line in place of the table where several GPUs have rows and no two can be compared; empty where two
    can, or where there are not two."""
    gpus = [slug for slug in names if slug in set(rows["gpu"]) and not slug.startswith("cpu-")]
    if common or len(gpus) < 2:
        return ""
    current = [slug for slug in gpus if not rows.loc[rows["gpu"] == slug, "stale"].map(bool).all()]
    if len(current) == 1:
        others = " and ".join(names[slug] for slug in gpus if slug not in current)
        return f"Only {names[current[0]]} has rows of this commit's sources; those of {others} are older."
    return NOTHING_IN_COMMON


def lines(some: Sequence[CommonProblem], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A line a problem and pair of a kernel."""
    return [
        {
            "words": one.words,
            "extent": one.extent,
            "rank": one.rank,
            "gpus": f"{one.a} {one.b}",
            "a": names[one.a],
            "b": names[one.b],
            "a_best": one.a_best,
            "b_best": one.b_best if one.differs else "the same",
            "times": [number(one.a_us), number(one.b_us)],
            "bound": one.bound,
            "by": "finals" if one.by_finals else "sweeps",
            "cells": _cells(one),
        }
        for one in some
    ]


def charts(drawn: Sequence[Plot], some: Sequence[CommonProblem], names: Mapping[str, str]) -> list[Chart]:
    """A kernel's common problems on the x axis of its first workload: a line a pair, and dashed the ratio
    that the ceilings would give."""
    if not drawn:
        return []
    drawing = drawn[0].drawing
    places = {
        (row["words"], row["extent"]): (row["panel"], row["x"])
        for row in drawing.lines[["words", "extent", "panel", "x"]].to_dict("records")
    }
    pairs = list(dict.fromkeys((one.a, one.b) for one in some))
    found = []
    for panel in drawing.panels:
        here = [one for one in some if places.get((one.words, one.extent), ("",))[0] == panel]
        for a, b in pairs:
            of_pair = [one for one in here if (one.a, one.b) == (a, b)]
            if len(of_pair) < 2:
                continue
            marks = sorted(
                (Mark(places[one.words, one.extent][1], one.ratio, _said(one)) for one in of_pair),
                key=lambda mark: mark.x,
            )
            ratios = [one.ratio for one in of_pair]
            known = [one.by_ceilings for one in of_pair if one.by_ceilings is not None]
            found.append(
                Chart(
                    title=" · ".join(filter(None, [f"{names[b]} / {names[a]}", panel])),
                    x_label=drawing.x_label,
                    y_label="times as long",
                    lines=[Series(f"{names[b]} / {names[a]}", STYLE, marks)],
                    gpus=(a, b),
                    words=of_pair[0].words,
                    limits=[Limit(known[-1], f"by ceilings {speedup(known[-1])}")] if known else (),
                    is_log=max(ratios) > WIDE_RATIOS * min(ratios),
                )
            )
    return found


def _said(one: CommonProblem) -> str:
    """A common problem in words."""
    parts = [
        f"{one.extent}: {speedup(one.ratio)} times as long",
        f"{number(one.a_us)} us by {one.a_best}",
        f"{number(one.b_us)} us by {one.b_best}",
        "" if one.by_ceilings is None else f"by ceilings {speedup(one.by_ceilings)}",
    ]
    return ", ".join(filter(None, parts))
