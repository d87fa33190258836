"""Which of many rows is the best, and how it stands to its baseline: of rows by their columns' names, as a
terminal's table has them, and as a frame gives them. Needs no pandas, which takes half a second to import."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

NO_REASON = "no reason was recorded"

PLACE = ("kernel", "gpu", "words", "extent")
"""The columns that name where providers meet."""

RANKED = (*PLACE, "rank", "provider", "status", "valid", "throttle", "median_us", "measurement")
"""The columns that decide what is best."""

COMPARED = (
    *(*PLACE, "provider", "median_us", "noise_floor", "rel_ci", "incomparable"),
    *("valid", "invalid_reason"),
)
"""The columns that a comparison with the baseline takes."""


def best_configurations(rows: Sequence[Row]) -> list[int]:
    """Where the fastest configuration of each provider at each kernel, GPU and problem stands, in that order;
    timed rows only.

    A throttled time is an upper bound and may win. Another timing not to be trusted is taken only where the
    provider has no other. Times of two versions of the measuring code are not compared: where a later one
    has timed a problem, times of earlier ones are left out.
    """
    timed = [i for i, row in enumerate(rows) if row["status"] == "ok"]
    newest: dict[tuple[Any, ...], float] = {}
    for i in timed:
        place, version = _place(rows[i]), version_of(rows[i]["measurement"])
        newest[place] = max(version, newest.get(place, version))
    timed = [i for i in timed if version_of(rows[i]["measurement"]) == newest[_place(rows[i])]]
    return _first_of_each(rows, timed, ("provider",), ("provider", "distrusted", "median_us"))


def best_providers(rows: Sequence[Row]) -> list[int]:
    """Where the fastest of the best configurations at each kernel, GPU and problem stands, again not one
    that is not to be trusted, if there is any other."""
    return _first_of_each(rows, range(len(rows)), (), ("distrusted", "median_us", "provider"))


def version_of(measurement: str) -> float:
    """A number that grows with the version of the measuring code; that of a tree whose measuring code is
    edited is the greatest."""
    return float(measurement) if measurement.isdecimal() else math.inf


def is_bound(row: Mapping[Any, Any]) -> bool:
    """Whether a time is an upper bound: the device was held back while it was taken."""
    return row["valid"] is False and isinstance(row["throttle"], str)


def is_distrusted(row: Mapping[Any, Any]) -> bool:
    """Whether a time says nothing: it is not to be trusted, and no upper bound either."""
    return row["valid"] is False and not is_bound(row)


def doubt(row: Mapping[Any, Any]) -> str:
    """Why a time is not to be trusted; empty for one that is."""
    return (row["invalid_reason"] or NO_REASON) if row["valid"] is False else ""


def against_baseline(best: Sequence[Row], baselines: Mapping[str, str]) -> list[tuple[float, bool, str]]:
    """Of each of the best configurations how many times faster it is than the kernel's baseline provider on
    the same GPU and problem, NaN where that was not timed and where either is not comparable;
    whether this is no difference, because it is within the noise floor or the confidence interval of
    either; and why it is not to be trusted, empty where it is."""
    base = {_place(row): row for row in best if row["provider"] == baselines.get(row["kernel"])}
    found = []
    for row in best:
        rival = base.get(_place(row))
        if rival is None or isinstance(row["incomparable"], str) or isinstance(rival["incomparable"], str):
            found.append((math.nan, False, doubt(row)))
            continue
        ratio = rival["median_us"] / row["median_us"]
        is_tied = rival is not row and abs(ratio - 1) <= max(_noise(row), _noise(rival))
        found.append((ratio, is_tied, doubt(row) or doubt(rival)))
    return found


def _first_of_each(
    rows: Sequence[Row], which: Iterable[int], names: Sequence[str], order: Sequence[str]
) -> list[int]:
    def value(row: Row, name: str) -> Any:
        return is_distrusted(row) if name == "distrusted" else row[name]

    def rank(i: int) -> tuple[Any, ...]:
        row = rows[i]
        return (row["kernel"], row["gpu"], row["rank"], *(value(row, name) for name in order))

    first: dict[tuple[Any, ...], int] = {}
    for i in sorted(which, key=rank):
        first.setdefault((*_place(rows[i]), *(rows[i][name] for name in names)), i)
    return list(first.values())


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _noise(row: Row) -> float:
    known = (row["noise_floor"], row["rel_ci"])
    return max((value for value in known if value is not None and not math.isnan(value)), default=0.0)
