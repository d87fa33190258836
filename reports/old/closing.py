"""The table that `make repro` ends with: of one machine the best at each kernel's largest problem.

It is read from the report's ``best.csv``, so that it is there at once where nothing was measured. Before
there is a report of a sweep, the ledgers have the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.reporting import best
from pipeline.reporting.best import Row
from pipeline.reporting.numbers import RATES, number, percent, print_wide
from pipeline.store import files, results, runs

MOST_ROWS = 18
"""What a terminal of 24 lines shows beside the closing lines."""


def show(console: Console, reports: Path, gpu: str) -> bool:
    """Print the table of a machine, and where the rest is; False where the report has nothing of it."""
    rows = best.read(reports / "best.csv", gpu)
    if not rows:
        return False
    chosen = choose(rows)
    print_wide(console, table(chosen, gpu))
    page = reports / "report.html"
    more = len(rows) - len(chosen)
    rest = f"… and {more} more in the report. " if more else ""
    console.print(
        f"{rest}All machines side by side: {page}. Every run in MLflow: make ui.",
        highlight=False,
        soft_wrap=True,
    )
    return True


def show_first(console: Console, folder: Path, gpu: str, kernels: Collection[str]) -> None:
    """Print the table of what a machine's sweeps of these kernels have just found, while the rest of a run
    goes on."""
    if rows := best.of_ledgers(folder, gpu, kernels):
        print_wide(console, table(choose(rows), f"{gpu}, by the sweeps"))


@dataclass(frozen=True)
class Provenance:
    """How many rows of the ledgers were measured in this checkout, how many of these lately, and how many
    came with the clone, by machine."""

    here: int
    lately: int
    cloned: Counter[str]

    def __str__(self) -> str:
        lately = f", {self.lately or 'none'} of them now" if self.here else ""
        sentence = f"{_rows(self.here)} measured in this checkout{lately}"
        if not self.cloned:
            return f"{sentence}."
        machines = ", ".join(sorted(self.cloned))
        return f"{sentence}; {self.cloned.total()} came with the clone ({machines})."


def provenance(folder: Path, since: datetime) -> Provenance:
    """Of the rows below the repository's results folder, and of this host's own."""
    known, here, lately, cloned = runs.measured_here(), 0, 0, Counter[str]()
    for place in results.folders_of(folder):
        for path in sorted((place / "timings").glob("*/*.jsonl")):
            for origin in _origins(path):
                if place == folder and origin["run"] not in known:
                    cloned[path.stem] += 1
                else:
                    here += 1
                    lately += datetime.fromisoformat(origin["measured_at"]) >= since
    return Provenance(here, lately, cloned)


def _origins(path: Path) -> Iterator[Mapping[str, str]]:
    """Where the rows of a ledger came from. What is no row is none: who reads all of it says so.

    A row ends with its run and its time. The samples before, most of a ledger, are not read for these.
    """
    for line in files.content(path).splitlines():
        _, found, last = line.rpartition(b',"run":')
        with suppress(ValueError, KeyError, TypeError):
            origin = json.loads(b'{"run":' + last) if found else {}
            yield {name: str(origin[name]) for name in ("run", "measured_at")}


def _rows(count: int) -> str:
    return "1 row was" if count == 1 else f"{count or 'No'} rows were"


def choose(rows: Sequence[Row]) -> list[Row]:
    """Of each kernel's first workload the last problem, which is the largest: by dtype, as far as a screen
    goes."""
    by_kernel: dict[str, dict[str, Row]] = {}
    for row in rows:
        of_kernel = by_kernel.setdefault(row["kernel"], {})
        first = next(iter(of_kernel.values()), row)
        if row["workload"] == first["workload"]:
            of_kernel[row["words"]] = row
    each = max(1, MOST_ROWS // max(1, len(by_kernel)))
    return [row for of_kernel in by_kernel.values() for row in list(of_kernel.values())[:each]]


def table(rows: Sequence[Row], title: str) -> Table:
    """A row a kernel and dtype: the best, its rate, and how many times as fast as the baseline it is."""
    found = Table(
        title=title,
        title_justify="left",
        caption="\n".join(best.notes(rows)) or None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("kernel", "problem", "dtype", "best", "us", "rate", "of ceiling", "x baseline"):
        is_number = heading in {"problem", "us", "rate", "of ceiling"}
        is_short = heading in {"kernel", "dtype", "us"}
        found.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_short)
    for row in rows:
        rate = f"{number(best.value(row[row['headline']]))} {RATES[row['headline']]}"
        found.add_row(
            row["kernel"],
            row["problem"],
            row["words"],
            f"{row['provider']} {row['configuration']}".strip(),
            best.time(row),
            rate,
            percent(best.value(row["ceiling_fraction"])),
            f"{best.ratio(row)} x {row['baseline']}",
        )
    return found
