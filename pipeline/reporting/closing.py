"""The table that `make repro` ends with: of one machine the best at each kernel's largest problem.

It is read from the report's ``best.csv``, so that it is there at once where nothing was measured. Before
there is a report of a sweep, the ledgers have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from pipeline.reporting import best
from pipeline.reporting.best import Row
from pipeline.reporting.numbers import RATES, number, percent, print_wide, speedup

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


def show_first(console: Console, folder: Path, gpu: str) -> None:
    """Print the table of what a machine's sweeps have just found, while the rest of a run goes on."""
    if rows := best.of_ledgers(folder, gpu):
        print_wide(console, table(choose(rows), f"{gpu}, by the sweeps"))


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
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for heading in ("kernel", "problem", "dtype", "best", "us", "rate", "of ceiling", "x baseline"):
        is_number = heading in ("problem", "us", "rate", "of ceiling")
        found.add_column(
            heading, justify="right" if is_number else "left", overflow="fold", no_wrap=heading == "problem"
        )
    for row in rows:
        rate = f"{number(best.value(row[row['headline']]))} {RATES[row['headline']]}"
        found.add_row(
            row["kernel"],
            row["problem"],
            row["words"],
            f"{row['provider']} {row['configuration']}".strip(),
            number(best.value(row["median_us"])) + "!" * (row["valid"] == "False"),
            rate,
            percent(best.value(row["ceiling_fraction"])),
            f"{speedup(best.value(row['speedup']))} x {row['baseline']}",
        )
    return found
