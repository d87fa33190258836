"""The report's numbers as CSV files. A column's name has its unit; a column without a unit holds words."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing pandas takes half a second, and reading a file does not need it
    import pandas as pd

NAMES = {"gbps": "gb_per_s", "tflops": "tflop_per_s", "rel_ci": "rel_ci_fraction", "speedup": "speedup_ratio"}
"""The frame columns that have other names in a file, with these names."""

MARKS = ("valid", "throttle", "old", "incomparable", "tied", "doubt")
"""The columns for the marks on pages.

A time that is not ``valid`` is distrusted; with a ``throttle`` it is an upper bound. ``old`` lists the parts
that changed since the measurement: source, measuring code, environment. ``incomparable`` is why the time has
no ratio. ``tied`` says that the ratio lies within the noise. ``doubt`` is why the ratio is distrusted.
"""

COLUMNS = [
    *("kernel", "workload", "problem", "words", "gpu", "provider", "configuration"),
    *("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "headline", "bound", "ceiling_fraction"),
    *("baseline", "speedup", *MARKS, "commit", "dirty"),
]
"""The columns of ``best.csv``: the best configuration at each problem. ``problem`` holds its numbers."""

PLOT_COLUMNS = [
    *("workload", "x_dimension", "x", "gbps", "tflops", "provider", "configuration", "gpu", "words"),
    *("median_us", "speedup", *MARKS),
]
"""The columns of ``data/NAME.csv``, the numbers of the plot NAME. ``words`` belong to its charts."""


def file_columns(columns: Sequence[str]) -> list[str]:
    """Return the names in a file of a frame's columns."""
    return [NAMES.get(one, one) for one in columns]


def as_csv(rows: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return rows as CSV, with numbers to six digits."""
    found = rows[list(columns)].rename(columns=NAMES)
    if "headline" in found:  # its values are column names
        found = found.assign(headline=found["headline"].map(NAMES))
    return found.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def best_csv(best: pd.DataFrame, baselines: Mapping[str, str]) -> str:
    """Return the text of ``best.csv``, from the best configurations of each provider."""
    from .frames import best_providers

    found = best_providers(best)
    found = found.assign(baseline=found["kernel"].map(baselines), problem=found["extent"])
    return as_csv(found.sort_values(["kernel", "rank", "gpu"]), COLUMNS)


def read_best(path: Path, gpu: str) -> list[dict[str, Any]]:
    """Return one machine's lines of a ``best.csv`` as rows of a frame; none if there is no file."""
    if not path.is_file():
        return []
    frame_names = {name: column for column, name in NAMES.items()}
    with path.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["gpu"] == gpu]
    return [
        {frame_names.get(name, name): _value(name, cell) for name, cell in line.items()}
        | {"headline": frame_names[line["headline"]], "extent": line["problem"]}
        for line in lines
    ]


def _value(name: str, cell: str) -> Any:
    if name in ("valid", "tied", "dirty"):
        return cell == "True"
    if name in ("throttle", "incomparable"):
        return cell or None
    if name.endswith(("_us", "_fraction", "_per_s", "_ratio")):
        return float(cell) if cell else math.nan
    return cell
