"""Replays against ledgers: how near searches come to the best, and the regret of the rule of tuned tables.

Nothing is measured. A grid is the configurations of one provider at one problem in a ledger. A search of it
works as in a sweep, and gets the ledger's times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isinf

from kernel_pipeline.ops import rule
from kernel_pipeline.ops.tuned import words_text
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from pipeline.points.asked import asked
from pipeline.points.catalog import Entry
from pipeline.points.notation import plural
from pipeline.points.plan import Pins, chosen_providers
from pipeline.points.search import Sampler
from pipeline.points.searches import SearchBudget, Searches
from pipeline.reporting.numbers import percent
from pipeline.reporting.tables import TextTable
from pipeline.verdicts import regret
from pipeline.verdicts.regret import Left, Times

SHARES = (0.05, 0.10, 0.15, 0.25, 0.50)
"""The shares of a grid's configurations after which the table says how near a search is."""

SEEDS = 3
"""Plays of each search, each with another seed."""

FEWEST = 12
"""Grids with fewer configurations are left out."""

SIDES = {True: "within", False: "beyond", None: "both"}
"""The sides of the L2 cache by ``within_l2``."""

NEAR = 0.02
"""A configuration within this share of the best time is as good."""


@dataclass(frozen=True)
class Grid:
    """Configurations of a provider at a problem with their times, None for one that failed; and whether a
    sweep on a GPU compiles them ahead."""

    times: Mapping[Point, float | None]
    is_ahead: bool

    @property
    def best(self) -> float:
        """The shortest time; infinite where every configuration failed."""
        return min((us for us in self.times.values() if us is not None), default=inf)

    def trials(self, share: float) -> int:
        """How many configurations are this share of all, at least one."""
        return ceil(share * len(self.times))


def grids(
    entry: Entry, rows: Sequence[Measurement], pins: Pins, providers: Sequence[str] | None
) -> list[Grid]:
    """The large enough grids of a ledger's requested points. If rows of a grid have several settings, the
    most frequent ones count."""
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
    """Search all grids of a ledger as a sweep does, each by this share of its configurations. Returns by grid
    how much longer the best that was found takes than the grid's best, as a share of it; infinite where all
    trials failed."""
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
    """The table of a search in the grids of one ledger: after a share of each grid's configurations, how far
    the best that was found is from the grid's best, and how often it is near."""
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


def regretted(entry: Entry, times: Sequence[Times], title: str) -> TextTable:
    """How much longer than the fastest of a ledger a choice takes, on both sides of the L2 cache: the choice
    of the rule between tuned problems, where each problem is left out in turn, in every dtype; the
    configuration that callers get; the best of the nearest problem alone; the safest default that fits; and
    the baseline."""
    rows = []
    size, baseline = entry.loaded.kernel.size, entry.loaded.kernel.baseline
    by_rule, by_nearest = (regret.leave_out(times, size, count) for count in (rule.NEIGHBOURS, 1))
    for side, name in SIDES.items():
        here = [one for one in times if side in (None, one.tuned.within_l2)]
        chosen, nearest = (
            [one for one in left if side in (None, one.times.tuned.within_l2)]
            for left in (by_rule, by_nearest)
        )
        trusted = regret.up_to(chosen) if side is not None else []
        ways = {
            "what is called": called(entry, times, by_rule, side),
            "rule": [one.regret for one in chosen],
            "rule where it is trusted": [one.regret for one in trusted],
            "nearest alone": [one.regret for one in nearest],
            "best default": _of_first(regret.safest(here, baseline), here),
            "baseline": _of_first([baseline], here),
        }
        for way, those in ways.items():
            if those:
                shares = [percent(regret.quantile(those, share)) for share in (0.5, 0.9, 1.0)]
                rows.append([name, way, str(len(those)), *shares])
    columns = ("L2 cache", "way", "problems", "median", "90th percentile", "largest")
    return TextTable(title, columns, rows, numbers=columns[2:])


def called(entry: Entry, times: Sequence[Times], by_rule: Sequence[Left], side: bool | None) -> list[float]:
    """The regrets of what callers get on a side of the cache, on both if that is None: the rule's choice
    where it is trusted, or safer than the safest default that fits."""
    if side is None:
        return [share for one in (True, False) for share in called(entry, times, by_rule, one)]
    here = [one for one in times if one.tuned.within_l2 == side]
    chosen = [one for one in by_rule if one.times.tuned.within_l2 == side]
    if not chosen:
        return []
    region = regret.region(side, here, chosen, entry.loaded.kernel.baseline)
    found = []
    for one in chosen:
        is_trusted = region.distance is not None and one.pick.distance <= region.distance
        known = region.fallback[words_text(one.times.tuned.problem)]
        safest = next((label for label in known if label in one.times.us), None)
        if is_trusted or (safest is not None and region.is_safer(known[safest])):
            found.append(one.regret)
        elif safest is not None:
            found.append(one.times.regret(safest))
    return found


def _of_first(labels: Iterable[str], some: Sequence[Times]) -> list[float]:
    """At each problem the regret of the first of the labels that was measured there."""
    chosen = [(one, next((label for label in labels if label in one.us), None)) for one in some]
    return [one.regret(label) for one, label in chosen if label is not None]
