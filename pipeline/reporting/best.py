"""The fastest provider at each problem, as ``best.csv`` and ``best.parquet`` have it and as a ledger gives it
at once."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.reporting import data_files, shares
from pipeline.reporting.frames import (
    against_baseline,
    best_configurations,
    best_providers,
    comparable,
    entry_of,
    frame,
)
from pipeline.reporting.numbers import microseconds, speedup
from pipeline.store import results

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    *("kernel", "workload", "problem", "words", "gpu", "provider", "configuration"),
    *("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "headline", "bound", "ceiling_fraction"),
    *("baseline", "speedup", *data_files.MARKS, "commit", "dirty"),
]
"""The best configuration of any provider at each problem, whose numbers ``problem`` holds. In the files some
columns have other names, with their units: ``data_files.NAMES``."""

Row = Mapping[str, str]
"""A line of the CSV file, by ``COLUMNS``."""


def rows(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """The rows of the files, of the best configurations of each provider."""
    found = best_providers(best)
    found = found.assign(baseline=found["kernel"].map(baselines), problem=found["extent"])
    if "old" not in found:  # rows as they were measured just now
        found = found.assign(old="")
    return found.sort_values(["kernel", "rank", "gpu"])


def read(path: Path, gpu: str) -> list[Row]:
    """A file's lines of one machine, in its order; none where there is no file."""
    return _lines(path.read_text(), gpu) if path.is_file() else []


def of_ledgers(folder: Path, gpu: str, kernels: Collection[str]) -> list[Row]:
    """What the file would have of these kernels on one machine, by the ledgers in a folder of results as they
    are now."""
    ledgers = [results.ledger_path(folder, name, gpu) for name in sorted(kernels)]
    there = [path for path in ledgers if path.is_file()]
    measured = [row for path in there for row in results.own_rows(path, lambda sentence: None)]
    if not any(row.outcome.timing for row in measured):
        return []
    _, ceilings = results.machines(folder, lambda sentence: None)
    of_all = frame(shares.of_records(comparable(measured), ceilings))
    entries = {name: entry_of(name) for name in dict.fromkeys(of_all["kernel"])}
    baselines = {name: entry.loaded.kernel.baseline for name, entry in entries.items() if entry is not None}
    found = rows(against_baseline(best_configurations(of_all), baselines), baselines)
    return _lines(data_files.csv(found, COLUMNS), gpu)


def value(cell: str) -> float | None:
    """A cell's number, None where it is empty."""
    return float(cell) if cell else None


def time(row: Row) -> str:
    """A line's time with its mark."""
    is_bound = row["throttle"] != ""
    return microseconds(value(row["median_us"]), is_bound) + "!" * (row["valid"] == "False" and not is_bound)


def ratio(row: Row) -> str:
    """The baseline's time over a line's with its mark."""
    text = speedup(value(row["speedup"]))
    return text + "!" * bool(text and row["doubt"])


def notes(rows: Iterable[Row]) -> list[str]:
    """The meaning of the lines' marks, by reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["doubt"]:
            where = " ".join(filter(None, (row["kernel"], row["problem"], row["words"])))
            found.setdefault(row["doubt"], []).append(where)
    return [f"! Not to be trusted at {', '.join(places)}: {why}." for why, places in found.items()]


def _lines(content: str, gpu: str) -> list[Row]:
    return [data_files.of_line(row) for row in csv.DictReader(content.splitlines()) if row["gpu"] == gpu]
