"""The report's numbers as files of data, and the same of ledgers at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pandas as pd

from pipeline.reporting.best import COLUMNS, MARKS, NAMES, Row, parsed
from pipeline.reporting.frames import frame
from pipeline.reporting.headlines import comparable, entry_of
from pipeline.reporting.ranking import against_baseline, best_configurations, best_providers
from pipeline.reporting.shares import with_shares
from pipeline.store import results

PLOT_COLUMNS = [
    *("workload", "x_dimension", "x", "gbps", "tflops", "provider", "configuration", "gpu", "words"),
    *("median_us", "speedup", *MARKS),
]
"""The columns of ``data/NAME.csv``: the numbers of the plot of the same name. ``words`` are those of its
charts."""


def file_columns(columns: Sequence[str]) -> list[str]:
    """The columns of a file, by those of a frame."""
    return [NAMES.get(one, one) for one in columns]


def as_csv(rows: pd.DataFrame, columns: Sequence[str]) -> str:
    """Rows as CSV, times and rates to six digits."""
    found = rows[list(columns)].rename(columns=NAMES)
    if "headline" in found:  # it names a column
        found = found.assign(headline=found["headline"].map(NAMES))
    return found.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def best_rows(best: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """The rows of the file, of the best configurations of each provider."""
    found = best_providers(best)
    found = found.assign(baseline=found["kernel"].map(baselines), problem=found["extent"])
    if "old" not in found:  # rows as they were measured just now
        found = found.assign(old="")
    return found.sort_values(["kernel", "rank", "gpu"])


def read_ledgers(folder: Path, gpu: str, kernels: Collection[str]) -> list[Row]:
    """What the file would have of these kernels on one machine, by the ledgers in a folder of results as they
    are now."""
    ledgers = [results.ledger_path(folder, name, gpu) for name in sorted(kernels)]
    there = [path for path in ledgers if path.is_file()]
    measured = [row for path in there for row in results.own_rows(path, lambda sentence: None)]
    if not any(row.outcome.timing for row in measured):
        return []
    _, ceilings = results.machines(folder, lambda sentence: None)
    rows = frame(with_shares(comparable(measured), ceilings))
    entries = {name: entry_of(name) for name in dict.fromkeys(rows["kernel"])}
    baselines = {name: entry.loaded.kernel.baseline for name, entry in entries.items() if entry is not None}
    found = best_rows(against_baseline(best_configurations(rows), baselines), baselines)
    return parsed(as_csv(found, COLUMNS), gpu)
