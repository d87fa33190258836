"""Which of many rows is the best, and how it stands to its baseline: of rows as ``frames`` gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.reporting.headlines import doubt

PLACE = ["kernel", "gpu", "words", "extent"]
"""The columns that name where providers meet."""


def best_configurations(rows: pd.DataFrame) -> pd.DataFrame:
    """The fastest configuration of each provider at each kernel, GPU and problem, in that order; timed rows
    only.

    A throttled time is an upper bound and may win. Another timing not to be trusted is taken only where the
    provider has no other. Times of two versions of the measuring code are not compared: where a later one
    has timed a problem, times of earlier ones are left out.
    """
    timed = rows[rows["status"].eq("ok")]
    versions = timed["measurement"].map(version_of).astype(float)
    newest = versions.groupby([timed[name] for name in PLACE], dropna=False).transform("max")
    return _first_of_each(timed[versions.eq(newest)], ["provider"], ["provider", "distrusted", "median_us"])


def best_providers(best: pd.DataFrame) -> pd.DataFrame:
    """The fastest of the best configurations at each kernel, GPU and problem, again not one that is not to be
    trusted, if there is any other."""
    return _first_of_each(best, [], ["distrusted", "median_us", "provider"])


def fastest_of_each(timed: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The fastest of the timed rows at each kernel, GPU and problem with the same values in these columns."""
    return _first_of_each(timed, names, [*names, "median_us"])


def _first_of_each(rows: pd.DataFrame, names: Sequence[str], order: Sequence[str]) -> pd.DataFrame:
    ranked = rows.reset_index(drop=True).assign(distrusted=distrusted(rows).to_numpy())
    ranked = ranked.sort_values(["kernel", "gpu", "rank", *order], kind="stable")
    return rows.iloc[ranked.drop_duplicates([*PLACE, *names]).index]


def version_of(measurement: str) -> float:
    """A number that grows with the version of the measuring code; that of a tree whose measuring code is
    edited is the greatest."""
    return float(measurement) if measurement.isdecimal() else math.inf


def distrusted(rows: pd.DataFrame) -> pd.Series[bool]:
    """The rows whose time says nothing: it is not to be trusted, and no upper bound either."""
    return rows["valid"].eq(False) & rows["throttle"].isna()


def against_baseline(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Add to the best configurations ``speedup``, how many times faster each is than the kernel's baseline
    on the same GPU and problem, NaN where that was not timed and where either is not comparable; ``tied``,
    whether this is no difference, because it is within the noise floor or the confidence interval of
    either; and ``doubt``, why it is not to be trusted, empty where it is."""
    rows: list[Any] = best.to_dict("records")
    base = {_place(row): row for row in rows if row["provider"] == baselines.get(row["kernel"])}
    found: list[tuple[float, bool, str]] = []
    for row in rows:
        other = base.get(_place(row))
        if other is None or isinstance(row["incomparable"], str) or isinstance(other["incomparable"], str):
            found.append((math.nan, False, doubt(row)))
            continue
        ratio = other["median_us"] / row["median_us"]
        is_tied = other is not row and abs(ratio - 1) <= max(_noise(row), _noise(other))
        found.append((ratio, is_tied, doubt(row) or doubt(other)))
    ratios, ties, doubts = zip(*found, strict=True) if found else ((), (), ())
    return best.assign(speedup=list(ratios), tied=list(ties), doubt=list(doubts))


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _noise(row: Mapping[str, Any]) -> float:
    known = (row["noise_floor"], row["rel_ci"])
    return max((value for value in known if value is not None and not math.isnan(value)), default=0.0)
