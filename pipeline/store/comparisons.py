"""Records of comparisons: the result of each, as a JSON file beside the samples of every round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import field

from kernel_pipeline.records.base import Record, ValidationError
from kernel_pipeline.records.credentials import MaskedText
from kernel_pipeline.records.fields import Microseconds, Name, NotNegative, Text, When
from kernel_pipeline.records.measurement import Commit

from . import results

FOLDER = "comparisons"


class ComparedSide(Record):
    """One side of a comparison: a commit, or the working tree at that time. In a comparison of environments,
    ``packages`` has the versions of torch, Triton, ptxas, and of all packages that differ."""

    name: MaskedText
    commit: Commit | None
    packages: dict[Text, Text] = field(default_factory=dict)


class ComparisonRow(Record):
    """A point on both sides: times in microseconds, the ratio b/a with its interval, the verdict on b, and in
    ``changed`` the differences between the launches."""

    problem: Text
    a: Text
    b: Text
    a_us: Microseconds
    b_us: Microseconds
    rounds: int
    ratio: NotNegative
    low: NotNegative
    high: NotNegative | None
    verdict: Literal["same", "faster", "slower", "undecided"]
    changed: MaskedText = ""


class Comparison(Record):
    """The latest comparison of two sides on one device. ``by`` is the size of a difference that counts.
    ``same_code`` counts, by provider, the points that were not timed: both sides run the same code."""

    kernel: Name
    gpu: Name
    run: Text
    command: MaskedText
    at: When
    a: ComparedSide
    b: ComparedSide
    by: NotNegative
    rows: tuple[ComparisonRow, ...]
    same_code: dict[Name, int] = field(default_factory=dict)


def path(folder: Path, kernel: str, gpu: str, name: str) -> Path:
    """Return the path of a comparison's samples; its result lies beside them as ``.json``, its plot as
    ``.svg``."""
    return folder / FOLDER / kernel / gpu / f"{name}.jsonl"


def load(folder: Path, warn: Callable[[str], None], local: bool = True) -> dict[Path, Comparison]:
    """Read all comparisons below the folder, by file. A comparison that can't be read, or belongs to another
    kernel or machine than its folder, is skipped with a sentence to ``warn``."""
    found = {}
    for place in results.folders_of(folder, local):
        for file in results.listed(place, f"{FOLDER}/*/*/*.json", warn):
            try:
                one = Comparison.from_json(file.read_bytes())
            except (OSError, ValidationError):
                warn(f"{file} is not readable as a comparison; skipped.")
                continue
            if (one.kernel, one.gpu) == (file.parent.parent.name, file.parent.name):
                found[file] = one
            else:
                warn(f"{file} is a comparison of another kernel or machine; skipped.")
    return found
