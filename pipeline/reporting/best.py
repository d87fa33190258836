"""The fastest provider at each problem, as the report's ``best.csv`` has it.

A column of a file has its unit in its name. One whose name has none holds words.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.reporting.numbers import microseconds, speedup

NAMES = {
    "gbps": "gb_per_s",
    "tflops": "tflop_per_s",
    "rel_ci": "rel_ci_fraction",
    "speedup": "speedup_ratio",
}
"""The names of a frame's columns in a file, where they differ."""

FRAME_NAMES = {name: column for column, name in NAMES.items()}

MARKS = ("valid", "throttle", "old", "incomparable", "tied", "doubt")
"""The columns for what the pages say of a time and its ratio by marks. A time that is not ``valid`` is not to
be trusted, and with a ``throttle`` it is an upper bound; ``old`` names what has changed since:
the source, the measuring code or the environment; ``incomparable`` is why no ratio is made of it;
``tied`` says that the ratio is no difference, and ``doubt`` why it is not to be trusted."""

COLUMNS = [
    *("kernel", "workload", "problem", "words", "gpu", "provider", "configuration"),
    *("median_us", "p20_us", "p80_us", "rel_ci", "gbps", "tflops", "headline", "bound", "ceiling_fraction"),
    *("baseline", "speedup", *MARKS, "commit", "dirty"),
]
"""The best configuration of any provider at each problem, whose numbers ``problem`` holds."""

Row = Mapping[str, str]
"""A line of ``best.csv``, by ``COLUMNS``."""


def read(path: Path, gpu: str) -> list[Row]:
    """A file's lines of one machine, in its order; none where there is no file."""
    return parsed(path.read_text(), gpu) if path.is_file() else []


def parsed(content: str, gpu: str) -> list[Row]:
    """The lines of one machine of a file's text, by the columns of a frame."""
    return [
        {
            FRAME_NAMES.get(name, name): FRAME_NAMES.get(value, value) if name == "headline" else value
            for name, value in row.items()
        }
        for row in csv.DictReader(content.splitlines())
        if row["gpu"] == gpu
    ]


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
    return distrust_notes(
        (row["doubt"], " ".join(filter(None, (row["kernel"], row["problem"], row["words"])))) for row in rows
    )


def distrust_notes(found: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences on what the mark ``!`` means, of reasons and places; those without a reason are left out."""
    places: dict[str, dict[str, None]] = {}
    for why, where in found:
        if why:
            places.setdefault(why, {})[where] = None
    return [f"! Not to be trusted at {', '.join(some)}: {why}." for why, some in places.items()]
