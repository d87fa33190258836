"""GPU against GPU as the report shows it: a table and charts a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.reporting.charts import Chart, Mark, Series
from pipeline.reporting.content import Plot
from pipeline.reporting.gpus import CommonProblem, GpuPair
from pipeline.reporting.numbers import number, percent, speedup
from pipeline.reporting.plots import Limit, Style

STYLE = Style("pair", "#0072b2", "#4aa8e8", "o", "-")
"""How a pair of GPUs is drawn."""


def _cells(one: CommonProblem | GpuPair) -> list[str]:
    """What both tables say of two GPUs: the ratio, what the ceilings explain, what the other's best costs."""
    return [
        speedup(one.ratio),
        speedup(one.by_ceilings),
        percentage(one.explained),
        speedup(one.a_on_b),
        speedup(one.b_on_a),
    ]


def overview(some: Sequence[GpuPair], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """A line a kernel, words and pair."""
    return [
        {
            "kernel": one.kernel,
            "words": one.words,
            "gpus": f"{one.a} {one.b}",
            "a": names[one.a],
            "b": names[one.b],
            "problems": one.problems,
            "cells": _cells(one),
            "differing": f"{one.differing} of {one.problems}",
            "worst": speedup(one.worst),
        }
        for one in some
    ]


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
                )
            )
    return found


def percentage(share: float | None) -> str:
    """A share of a difference: 87 %; of ceilings that point the other way -12 %."""
    if share is None:
        return ""
    return percent(share) if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _said(one: CommonProblem) -> str:
    """A common problem in words."""
    parts = [
        f"{one.extent}: {speedup(one.ratio)} times as long",
        f"{number(one.a_us)} us by {one.a_best}",
        f"{number(one.b_us)} us by {one.b_best}",
        "" if one.by_ceilings is None else f"by ceilings {speedup(one.by_ceilings)}",
    ]
    return ", ".join(filter(None, parts))
