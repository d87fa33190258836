"""Which of many rows is the best, and how it stands to its baseline: of rows by their columns' names, as a
terminal's table has them, and as a frame gives them. Needs no pandas, which takes half a second to import."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

PLACE = ("kernel", "gpu", "words", "extent")
"""The columns that name where providers meet."""

RANKED = (*PLACE, "rank", "provider", "status", "valid", "median_us")
"""The columns that decide what is best."""

COMPARED = (*PLACE, "provider", "median_us", "noise_floor", "rel_ci", "incomparable")
"""The columns that a comparison with the baseline takes."""


def best_configurations(rows: Sequence[Row]) -> list[int]:
    """Where the fastest configuration of each provider at each kernel, GPU and problem stands, in that order;
    timed rows only.

    A timing not to be trusted is taken only where the provider has no other.
    """
    timed = [i for i, row in enumerate(rows) if row["status"] == "ok"]
    return _first_of_each(rows, timed, ("provider",), ("provider", "distrusted", "median_us"))


def best_providers(rows: Sequence[Row]) -> list[int]:
    """Where the fastest of the best configurations at each kernel, GPU and problem stands, again a trusted
    one if there is any."""
    return _first_of_each(rows, range(len(rows)), (), ("distrusted", "median_us", "provider"))


def against_baseline(best: Sequence[Row], baselines: Mapping[str, str]) -> list[tuple[float, bool]]:
    """Of each of the best configurations how many times faster it is than the kernel's baseline provider on
    the same GPU and problem, NaN where that was not timed and where either is not comparable; and
    whether this is no difference, because it is within the noise floor or the confidence interval of
    either."""
    base = {_place(row): row for row in best if row["provider"] == baselines.get(row["kernel"])}
    found = []
    for row in best:
        rival = base.get(_place(row))
        if rival is None or isinstance(row["incomparable"], str) or isinstance(rival["incomparable"], str):
            found.append((math.nan, False))
            continue
        ratio = rival["median_us"] / row["median_us"]
        found.append((ratio, rival is not row and abs(ratio - 1) <= max(_noise(row), _noise(rival))))
    return found


def _first_of_each(
    rows: Sequence[Row], which: Iterable[int], names: Sequence[str], order: Sequence[str]
) -> list[int]:
    def value(row: Row, name: str) -> Any:
        return row["valid"] is False if name == "distrusted" else row[name]

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
