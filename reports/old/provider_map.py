"""The map of the fastest providers: a workload's x axis from left to right, its other numbers downwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.reporting.numbers import speedup


@dataclass(frozen=True)
class Spot:
    """A problem by its numbers and its words, and each provider's microseconds there; ``doubted`` are
    the providers whose time is not to be trusted."""

    numbers: Mapping[str, int]
    words: str
    times: Mapping[str, float]
    doubted: frozenset[str] = frozenset()


def provider_map(spots: Iterable[Spot], across: Sequence[str], baseline: str) -> list[list[str]]:
    """Header and rows: in each cell the fastest provider, and the baseline's time over its own.

    ``across`` are the dimensions whose values the columns are; those that a size stands for are equal, and a
    column shows their value once. A row has the numbers that are not among them, and the words. Spots where
    nothing is timed leave their cells empty, and a row of such spots is left out.
    """
    cells: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for spot in spots:
        column = " ".join(dict.fromkeys(str(spot.numbers[name]) for name in across))
        row = " ".join(f"{name}={value}" for name, value in spot.numbers.items() if name not in across)
        columns.setdefault(column)
        if spot.times:
            cells.setdefault((row, spot.words), {})[column] = _cell(spot, baseline)
    named = any(row for row, _ in cells)
    header = [*(["problem"] if named else []), "dtype", *(f"{' = '.join(across)} = {one}" for one in columns)]
    rows = [
        [*([row] if named else []), words, *(some.get(one, "") for one in columns)]
        for (row, words), some in cells.items()
    ]
    return [header, *rows] if rows else []


def _cell(spot: Spot, baseline: str) -> str:
    times = spot.times
    name = min(times, key=times.__getitem__)
    mark = "!" * (not spot.doubted.isdisjoint({name, baseline}))
    if name == baseline or baseline not in times:
        return f"`{name}`{mark}"
    return f"`{name}` {speedup(times[baseline] / times[name])}{mark}"
