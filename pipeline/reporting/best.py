"""The fastest provider at each problem, as ``best.csv`` has it and as a ledger gives it at once."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.reporting.frames import (
    against_baseline,
    best_configurations,
    best_providers,
    comparable,
    entry_of,
    frame,
)
from pipeline.store import results

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    *("kernel", "workload", "problem", "words", "gpu", "provider", "configuration"),
    *("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "headline", "bound", "ceiling_fraction"),
    *("baseline", "speedup", "valid", "commit", "dirty"),
]
"""The best configuration of any provider at each problem, whose numbers ``problem`` holds."""

Row = Mapping[str, str]
"""A line of the file, by its columns."""


def text(best: pd.DataFrame, baselines: Mapping[str, str]) -> str:
    """The file, of the best configurations of each provider; times and rates to six digits."""
    rows = best_providers(best)
    rows = rows.assign(baseline=rows["kernel"].map(baselines), problem=rows["extent"])
    rows = rows.sort_values(["kernel", "rank", "gpu"])
    return rows[COLUMNS].to_csv(index=False, float_format="%.6g", lineterminator="\n")


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
    rows = frame(comparable(measured))
    entries = {name: entry_of(name) for name in dict.fromkeys(rows["kernel"])}
    baselines = {name: entry.loaded.kernel.baseline for name, entry in entries.items() if entry is not None}
    return _lines(text(against_baseline(best_configurations(rows), baselines), baselines), gpu)


def value(cell: str) -> float | None:
    """A cell's number, None where it is empty."""
    return float(cell) if cell else None


def _lines(content: str, gpu: str) -> list[Row]:
    return [row for row in csv.DictReader(content.splitlines()) if row["gpu"] == gpu]
