"""The report's numbers as files of data: CSV, and beside it Parquet, which also says the columns' types.

A column of a file has its unit in its name. One whose name has none holds words.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NAMES = {
    "gbps": "gb_per_s",
    "tflops": "tflop_per_s",
    "rel_ci": "rel_ci_fraction",
    "speedup": "speedup_ratio",
}
"""The names of a frame's columns in a file, where they differ."""

MARKS = ("valid", "throttle", "old", "incomparable", "tied", "doubt")
"""The columns for what the pages say of a time and its ratio by marks. A time that is not ``valid`` is not to
be trusted, and with a ``throttle`` it is an upper bound; ``old`` names what has changed since:
the source, the measuring code or the environment; ``incomparable`` is why no ratio is made of it;
``tied`` says that the ratio is no difference, and ``doubt`` why it is not to be trusted."""

OF_FRAMES = {name: column for column, name in NAMES.items()}

NUMBERS = {"median_us", "p20_us", "p80_us", "ceiling_fraction", *NAMES}
"""The columns that hold numbers."""

TYPES = {
    "x": "Int64",
    **dict.fromkeys(("valid", "tied", "dirty"), "boolean"),
    **dict.fromkeys(NUMBERS, "Float64"),
}
"""pandas' types of a frame's columns; columns that are not here are texts. Any value may be missing."""


def names(columns: Sequence[str]) -> list[str]:
    """The columns of a file, by those of a frame."""
    return [NAMES.get(one, one) for one in columns]


def csv(rows: pd.DataFrame, columns: Sequence[str]) -> str:
    """Rows as CSV, times and rates to six digits."""
    return _named(rows, columns).to_csv(index=False, float_format="%.6g", lineterminator="\n")


def parquet(rows: pd.DataFrame, columns: Sequence[str]) -> bytes:
    """The same rows as Parquet, whole."""
    typed = rows.astype({one: TYPES.get(one, "string") for one in columns})
    texts = [one for one in columns if one not in TYPES]
    typed[texts] = typed[texts].replace("", None)
    file = io.BytesIO()
    _named(typed, columns).to_parquet(file, engine="pyarrow", index=False)
    return file.getvalue()


def columns_of(path: Path) -> list[str]:
    """The columns of a Parquet file; none for another file."""
    from pyarrow import ArrowInvalid, parquet

    try:
        return list(parquet.read_schema(path).names)
    except ArrowInvalid:
        return []


def of_line(line: Mapping[str, str]) -> dict[str, str]:
    """A line of a CSV file by a frame's columns."""
    return {
        OF_FRAMES.get(name, name): OF_FRAMES.get(value, value) if name == "headline" else value
        for name, value in line.items()
    }


def _named(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    found = rows[list(columns)].rename(columns=NAMES)
    # It names a column.
    return found.assign(headline=found["headline"].map(NAMES)) if "headline" in found else found
