"""Landscapes of configurations: a provider's rate over the two parameters that most of its rows vary.

The page's script draws them as heat maps. At each pair of values stands the fastest configuration that has
them, whatever its other parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.reporting.frames import distrusted
from pipeline.reporting.numbers import RATES

FEWEST = 2
"""Values of each of the two parameters, or there is no landscape."""


SHOWN = [
    *("provider", "parameters", "rank", "gpu", "words", "extent", "headline", "configuration"),
    *("valid", "throttle", "median_us", *RATES),
]
"""The columns that a landscape takes of its rows: the others would take most of the time."""


def timed(rows: pd.DataFrame) -> pd.DataFrame:
    """What landscapes take of measurements."""
    return rows.loc[rows["status"] == "ok", SHOWN]


def landscapes(rows: pd.DataFrame, machines: Mapping[str, str]) -> list[dict[str, Any]]:
    """A kernel's providers with their two parameters, and a map for each machine and problem; those that vary
    fewer parameters have none. ``rows`` are the kernel's, as ``timed`` gives them."""
    found = []
    for provider, of_provider in rows.groupby("provider"):
        chosen = varied(of_provider)
        if chosen is None:
            continue
        across, down = chosen
        values = {
            name: sorted({one[name] for one in set(of_provider["parameters"])}, key=_order)
            for name in (across, down)
        }
        if min(map(len, values.values())) < FEWEST:
            continue
        configurations: dict[str, int] = {}
        places = of_provider.sort_values(["rank", "gpu"]).groupby(["rank", "gpu"], sort=False)
        maps = [
            {
                "gpu": str(gpu),
                "words": some["words"].iloc[0],
                "problem": some["extent"].iloc[0],
                "unit": RATES[some["headline"].iloc[0]],
                "rate_times_us": float(f"{_rate_times_us(some):.5g}"),
                "cells": _cells(some, values[across], values[down], across, down, configurations),
            }
            for (_, gpu), some in places
        ]
        found.append(
            {
                "provider": str(provider),
                "across": {"name": across, "values": [str(one) for one in values[across]]},
                "down": {"name": down, "values": [str(one) for one in values[down]]},
                "configurations": list(configurations),
                "machines": {str(gpu): machines[str(gpu)] for gpu in sorted(set(of_provider["gpu"]))},
                "maps": [one for one in maps if len(one["cells"]) > 1],
            }
        )
    return [one for one in found if one["maps"]]


def varied(rows: pd.DataFrame) -> tuple[str, str] | None:
    """The two parameters that most of a provider's rows vary, in their order; None of one that has no two. A
    row varies a parameter that has several values at the row's machine and problem. Of two that as many rows
    vary it is the one that has more values."""
    chosen = list(dict.fromkeys(rows["parameters"]))
    names = list(dict.fromkeys(name for one in chosen for name in one))
    counts = dict.fromkeys(names, 0)
    for _, some in rows.groupby(["gpu", "rank"]):
        for name in names:
            if len({one.get(name) for one in some["parameters"]}) > 1:
                counts[name] += len(some)
    every = {name: {one.get(name) for one in chosen} for name in names}
    own = [name for name in names if counts[name] and None not in every[name]]
    most = sorted(own, key=lambda name: (-counts[name], -len(every[name])))[:2]
    return None if len(most) < 2 else (min(most, key=names.index), max(most, key=names.index))


def _order(value: Any) -> tuple[bool, Any]:
    """Numbers by size, words by the alphabet."""
    return isinstance(value, str), value


def _rate_times_us(rows: pd.DataFrame) -> float:
    """A problem's work: its rate times its time."""
    row = rows.iloc[0]
    return float(row[row["headline"]] * row["median_us"])


def _cells(
    rows: pd.DataFrame,
    across: Sequence[Any],
    down: Sequence[Any],
    x: str,
    y: str,
    configurations: dict[str, int],
) -> list[list[Any]]:
    """The column and the row of each cell, its time and the place of its configuration among all of the
    provider; one not to be trusted has ``True`` behind them."""
    best: dict[tuple[int, int], Mapping[Any, Any]] = {}
    shown = rows[["parameters", "median_us", "configuration", *set(rows["headline"]), "headline"]]
    ranked = shown.assign(
        distrusted=distrusted(rows),
        marked=rows["valid"].eq(False),
        across=[across.index(one[x]) for one in rows["parameters"]],
        down=[down.index(one[y]) for one in rows["parameters"]],
    ).sort_values(["distrusted", "median_us"])
    for row in ranked.drop_duplicates(["across", "down"]).to_dict("records"):
        best[row["across"], row["down"]] = row
    return [
        [
            *place,
            float(f"{row['median_us']:.4g}"),
            configurations.setdefault(row["configuration"], len(configurations)),
            *([True] if row["marked"] else []),
        ]
        for place, row in sorted(best.items())
    ]
