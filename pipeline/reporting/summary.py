"""The tables at the end of `make repro`, finals and tune.

The table of `make repro` has one machine's best configuration at each kernel's largest problem. It is read
from the report's ``best.csv``, so that a run without new measurements computes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from rich.console import Console

from kernel_pipeline import files
from kernel_pipeline.ops.table import Table as TunedTable
from kernel_pipeline.ops.table import TunedKernel, TunedRegion

from ..points import notation
from ..store import results, runs
from ..store.finals import Final, decided, fastest_of_ours
from .cells import TIE_NOTE, Row, distrust_notes, incomparable_notes, problem_of, ratio_cell, time_cell
from .data_files import read_best
from .numbers import RATES, number, percent
from .tables import TextTable

MOST_ROWS = 18
"""The number of rows that fit on a terminal together with the lines below them."""

QUICK = "quick"
"""The workload that a kernel's rows come from. Other workloads have extremes, such as few or odd rows."""


def show(console: Console, reports: Path, gpu: str) -> bool:
    """Print a machine's table and the paths of further results; return False if the report lacks the
    machine."""
    rows = read_best(reports / "best.csv", gpu)
    if not rows:
        return False
    chosen = choose(rows)
    table(chosen, gpu).print(console)
    page = reports / "report.html"
    more = len(rows) - len(chosen)
    rest = f"… and {more} more in the report. " if more else ""
    console.print(
        f"{rest}All machines side by side: {page}. Every run in MLflow: make ui.",
        highlight=False,
        soft_wrap=True,
    )
    return True


def without_table(gpu: str) -> str:
    """Return the sentence for a machine that the report has no table of."""
    return f"There is no table of {gpu}: no time was measured there, or all are in doubt (a busy machine?)."


def provenance(folder: Path, since: datetime) -> str:
    """Return a sentence on the origin of the rows below a results folder and this host's own folder.

    It says how many were measured in this checkout, how many of these after ``since``, and how many came with
    the clone.
    """
    known, here, lately, cloned = runs.measured_here(), 0, 0, Counter[str]()
    for place in results.folders_of(folder):
        for path in sorted((place / "timings").glob("*/*.jsonl")):
            for origin in _origins(path):
                if place == folder and origin["run"] not in known:
                    cloned[path.stem] += 1
                else:
                    here += 1
                    lately += datetime.fromisoformat(origin["measured_at"]) >= since
    rows = "1 row was" if here == 1 else f"{here or 'No'} rows were"
    sentence = f"{rows} measured in this checkout" + f", {lately or 'none'} of them now" * bool(here)
    if not cloned:
        return f"{sentence}."
    return f"{sentence}; {cloned.total()} came with the clone ({', '.join(sorted(cloned))})."


def _origins(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the origin of each row of a ledger. Other lines are skipped silently: the report names them.

    A row ends with its run and its time. The samples before them are most of a ledger and are not parsed.
    """
    for line in files.content(path).splitlines():
        _, found, last = line.rpartition(b',"run":')
        with suppress(ValueError, KeyError, TypeError):
            origin = json.loads(b'{"run":' + last) if found else {}
            yield {name: str(origin[name]) for name in ("run", "measured_at")}


def choose(rows: Sequence[Row]) -> list[Row]:
    """Return the largest problem in each dtype of each kernel's ``quick`` workload, or of its first if it was
    not measured there, cut to fit on a screen."""
    by_kernel: dict[str, list[Row]] = {}
    for row in rows:
        by_kernel.setdefault(row["kernel"], []).append(row)
    each = max(1, MOST_ROWS // max(1, len(by_kernel)))
    chosen: list[Row] = []
    for of_kernel in by_kernel.values():
        workloads = [row["workload"] for row in of_kernel]
        workload = QUICK if QUICK in workloads else workloads[0]
        largest = {row["words"]: row for row in of_kernel if row["workload"] == workload}
        chosen += list(largest.values())[:each]
    return chosen


def table(rows: Sequence[Row], title: str) -> TextTable:
    """Return a table with a row for each kernel and dtype: the best, its rate and its speedup. In a table of
    many rows the best has no configuration and the baseline no name, so that a row is a line."""
    has_room = len(rows) <= MOST_ROWS // 2
    return TextTable(
        title=title,
        columns=("kernel", "problem", "dtype", "best", "us", "rate", "ceiling", "x baseline"),
        rows=[
            [
                row["kernel"],
                row["extent"],
                row["words"],
                f"{row['provider']} {row['configuration'] if has_room else ''}".strip(),
                time_cell(row),
                f"{number(row[row['headline']])} {RATES[row['headline']]}",
                percent(row["ceiling_fraction"]),
                f"{ratio_cell(row) or '–'}{' x ' + row['baseline'] if has_room else ''}",
            ]
            for row in rows
        ],
        numbers=("us", "rate", "ceiling"),
        notes=[
            *([TIE_NOTE] if any(row["tied"] for row in rows) else ()),
            *incomparable_notes(rows),
            *distrust_notes((row["doubt"], problem_of(row)) for row in rows),
        ],
    )


def finals_table(groups: Sequence[Sequence[Final]], title: str) -> TextTable:
    """Return the table of our fastest at each problem: its share of the ceiling, and the others' ratios."""
    rows = []
    for group in groups:
        ours = fastest_of_ours(group)
        if ours is None:
            continue
        others = [
            f"{row.point.provider} {row.against.ratio:.2f} "
            f"{decided(row.against.verdict, len(row.rounds_us)) or row.against.verdict}"
            for row in group
            if row.power == "burst" and row.by != "own" and row.against
        ]
        rows.append(
            [
                ours.point.kernel,
                f"{notation.extent(ours.point)} {notation.words(ours.point)}",
                notation.label(ours.point),
                number(ours.median_us),
                percent(ours.rate.ceiling_fraction),
                ", ".join(others),
            ]
        )
    columns = ("kernel", "problem", "fastest of ours", "us", "of ceiling", "the others: time over ours")
    return TextTable(title, columns, rows, numbers=("us", "of ceiling"))


def tuned_table(found: TunedTable) -> TextTable:
    """Return the table of tuned configurations: a line for each kernel and side of the L2 cache."""
    rows = [[name, *_tuned(one, region)] for name, one in found.kernels.items() for region in one.regions]
    columns = ("kernel", "problems", "of the L2 cache", "regret p50", "p90", "generalised", "else", "fastest")
    return TextTable(f"tuned on {found.gpu}", columns, rows, numbers=("problems", "regret p50", "p90"))


def _tuned(one: TunedKernel, region: TunedRegion) -> list[str]:
    """Return a region's cells.

    They are the number of problems, the side of the L2 cache, the rule's regret, how many problems the rule
    is trusted with, the fallback, and how often each provider is the fastest.
    """
    here = [each for each in one.problems if each.within_l2 == region.within_l2]
    fastest = Counter(one.configurations[each.best].provider for each in here)
    generalised = "never" if region.distance is None else f"{region.generalised} of {region.problems}"
    if region.generalised_p90 is not None:
        generalised += f", p90 {percent(region.generalised_p90)}"
    return [
        str(len(here)),
        "within" if region.within_l2 else "beyond",
        percent(region.regret_median),
        percent(region.regret_p90),
        generalised,
        ", ".join(dict.fromkeys(next(iter(labels)) for labels in region.fallback.values() if labels)),
        ", ".join(f"{provider} {count}" for provider, count in fastest.most_common()),
    ]
