"""Play searches against ledgers that hold whole grids: how near does each come to the best?

    python -m pipeline.search_replay kernel=softmax
    python -m pipeline.search_replay kernel=matmul size=[4096,8192] provider=cuda_wgmma seeds=20
    python -m pipeline.search_replay kernel=layernorm search=tpe ahead=1

A grid is what a ledger holds of one provider at one problem. A search of it asks as a sweep with search=
asks, and is told the ledger's times: nothing is measured. For each share of its configurations the table has
the trials of the smallest and of the largest grid; how much longer the best configuration found takes than
the grid's best, at the median and the 90th percentile of all grids and seeds; and how many of them are within
2 %. The best is that of the ledger, so the ledger has to hold the whole grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isinf

from rich import box
from rich.table import Table

import kernels
from pipeline import UserError
from pipeline.command.options import SearchReplayConfig
from pipeline.command.run import console, run_stage, warn
from pipeline.points import catalog
from pipeline.points.asked import asked
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.points.plan import chosen_providers
from pipeline.points.point import Point
from pipeline.points.search import Sampler
from pipeline.points.searches import SearchBudget, Searches
from pipeline.reporting.numbers import print_wide
from pipeline.store import results
from pipeline.store.record import Measurement

SHARES = (0.05, 0.10, 0.15, 0.25, 0.50)
"""Of a grid's configurations: after so many of them the table says how near a search is."""

NEAR = 0.02
"""A configuration that takes at most this share longer than the best is as good."""


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


def run(config: SearchReplayConfig) -> None:
    """Play the searches and print a table for each ledger. Raises UserError where no ledger has a grid."""
    played = False
    for where in config.kernel or kernels.names():
        entry = catalog.find(where)
        for gpu, rows in ledgers(config, entry):
            if found := grids(config, entry, rows):
                print_wide(console, compared(config, found, f"{entry.name} on {gpu}"))
                played = True
    if not played:
        raise UserError(
            f"{config.input} has no grid of {config.fewest} configurations of one provider at one problem"
            f"{' that was asked for' if config.pin or config.provider else ''}; "
            "measure one by python -m pipeline.sweep, name its folder by input=, or write a smaller fewest=."
        )


def ledgers(config: SearchReplayConfig, entry: Entry) -> Iterator[tuple[str, list[Measurement]]]:
    """The machines on which the kernel was measured, each with the rows of its ledger."""
    for folder in results.folders_of(config.input):
        for path in results.listed(folder, f"timings/{entry.name}/*.jsonl", warn):
            yield path.stem, results.own_rows(path, warn)


def grids(config: SearchReplayConfig, entry: Entry, rows: Sequence[Measurement]) -> list[Grid]:
    """The grids of a ledger that are large enough, of the points that are asked for; of rows by several
    settings those by the settings that most were measured by."""
    chosen = {one.name: one for one in chosen_providers(entry, config.provider)}
    is_asked = asked(entry, config.pin, config.provider)
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
    return [grid for grid in made if len(grid.times) >= config.fewest and not isinf(grid.best)]


def play(found: Sequence[Grid], share: float, sampler: Sampler, seed: int, ahead: int) -> list[float]:
    """Search all grids of a ledger as a sweep does, each by this share of its configurations. How much longer
    than the grid's best takes the best that was found, as a share of it; infinite where all trials failed."""
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


def compared(config: SearchReplayConfig, found: Sequence[Grid], title: str) -> Table:
    """The table of all samplers against the grids of one ledger."""
    sizes = [len(grid.times) for grid in found]
    table = Table(
        title=f"{title}: {len(found)} grid{'s' * (len(found) != 1)} of {_range(sizes)} configurations, "
        f"{config.seeds} seed{'s' * (config.seeds != 1)}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column("search")
    for header in ("of the grid", "trials", "median off", "90th percentile", f"within {NEAR:.0%}"):
        table.add_column(header, justify="right")
    for sampler in config.search:
        table.add_section()
        for share in SHARES:
            plays = [play(found, share, sampler, seed, config.ahead) for seed in range(config.seeds)]
            off = sorted(one for each in plays for one in each)
            table.add_row(
                sampler,
                f"{share:.0%}",
                _range([grid.trials(share) for grid in found]),
                _percent(off[len(off) // 2]),
                _percent(off[ceil(0.9 * len(off)) - 1]),
                f"{sum(one <= NEAR for one in off) / len(off):.0%}",
            )
    return table


def _range(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _percent(share: float) -> str:
    return "nothing found" if isinf(share) else f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_stage("search_replay", SearchReplayConfig, run)
