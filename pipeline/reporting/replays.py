"""Replays of searches against a ledger, without measuring.

A grid is the set of one provider's configurations at one problem in a ledger. A search of a grid works as in
a sweep, but takes its times from the ledger. The tables show how near searches come to the best
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isinf

from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

from ..points.catalog import Entry
from ..points.choice import asked
from ..points.notation import plural
from ..points.plan import Pins, chosen_providers
from ..points.search import Sampler
from ..points.searches import SearchBudget, Searches
from .tables import TextTable

SHARES = (0.05, 0.10, 0.15, 0.25, 0.50)
"""The shares of a grid's configurations that the searches in the table may try."""

SEEDS = 3
"""The number of times that each search is replayed, each with another seed."""

FEWEST = 12
"""Grids with fewer configurations are left out."""

NEAR = 0.02
"""A configuration within this share of the best time counts as good as the best."""


@dataclass(frozen=True)
class Grid:
    """A provider's configurations at a problem with their times in microseconds, None for a failure.

    ``is_ahead`` says whether a sweep on a GPU compiles them ahead.
    """

    times: Mapping[Point, float | None]
    is_ahead: bool

    @property
    def best(self) -> float:
        """The shortest time; infinite if every configuration failed."""
        return min((us for us in self.times.values() if us is not None), default=inf)

    def trials(self, share: float) -> int:
        """Return the number of configurations in a share of the grid, at least one."""
        return ceil(share * len(self.times))


def grids(
    entry: Entry, rows: Sequence[Measurement], pins: Pins, providers: Sequence[str] | None
) -> list[Grid]:
    """Return the grids of a ledger's requested points that have at least ``FEWEST`` configurations.

    If the rows of a grid have several timing settings, the settings with the most rows are used.
    """
    chosen = {one.name: one for one in chosen_providers(entry, providers)}
    is_asked = asked(entry, pins, providers)
    found: dict[tuple[str, Values], dict[str, dict[Point, float | None]]] = {}
    for row in rows:
        if not is_asked(row.point):
            continue
        timing = row.outcome.timing
        by_settings = found.setdefault((row.point.provider, row.point.problem), {})
        times = by_settings.setdefault(row.parts.settings, {})
        times[row.point] = None if timing is None else timing.median_us
    made = [
        Grid(max(by_settings.values(), key=len), chosen[provider].compiles_ahead)
        for (provider, _), by_settings in found.items()
        if provider in chosen
    ]
    return [grid for grid in made if len(grid.times) >= FEWEST and not isinf(grid.best)]


def play(found: Sequence[Grid], share: float, sampler: Sampler, seed: int, ahead: int) -> list[float]:
    """Search the grids of a ledger as a sweep does, trying a share of each grid's configurations.

    Returns for each grid how much longer the best trial takes than the grid's best, as a fraction; infinite
    if all trials failed.
    """
    searches = Searches(SearchBudget(sampler, None, None, ahead, seed))
    times: dict[Point, float | None] = {}
    for grid in found:
        searches.add(list(grid.times), grid.is_ahead, {}, trials=grid.trials(share))
        times |= grid.times
    waiting = searches.refill([])
    while waiting:
        first, *rest = waiting
        searches.tell(first, times[first])
        waiting = searches.refill(rest)
    off = []
    for grid in found:
        best = searches.best(next(iter(grid.times)))
        off.append(inf if best is None else best[1] / grid.best - 1)
    return off


def searched(found: Sequence[Grid], sampler: Sampler, ahead: int, title: str) -> TextTable:
    """Return the table of a search in the grids of one ledger.

    A row has a share of each grid's configurations, how far the best trial is from the grid's best, and how
    often it is within ``NEAR``.
    """
    sizes = _range([len(grid.times) for grid in found])
    of_all = f"{plural(len(found), 'grid')} of {sizes} configurations, {SEEDS} seeds"
    columns = ("of the grid", "trials", "median off", "90th percentile", f"within {NEAR:.0%}")
    rows = []
    for share in SHARES:
        plays = [play(found, share, sampler, seed, ahead) for seed in range(SEEDS)]
        off = sorted(one for each in plays for one in each)
        middle, most = off[len(off) // 2], off[ceil(0.9 * len(off)) - 1]
        near = f"{sum(one <= NEAR for one in off) / len(off):.0%}"
        trials = _range([grid.trials(share) for grid in found])
        rows.append([f"{share:.0%}", trials, _percent(middle), _percent(most), near])
    return TextTable(f"{title}, {sampler}: {of_all}", columns, rows, numbers=columns)


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _percent(share: float) -> str:
    return "nothing found" if isinf(share) else f"{100 * share:.1f} %"
