"""Records of held-out problems: problems that were drawn at random, with the configuration that callers of
``kernel_pipeline.ops`` get there beside torch and other projects. One JSON file for each kernel, GPU and
draw lies beside the samples of its rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import field

from kernel_pipeline.records.base import Record, ValidationError, Values
from kernel_pipeline.records.credentials import MaskedText
from kernel_pipeline.records.fields import Count, Microseconds, Name, NotNegative, Text, When
from kernel_pipeline.records.measurement import Commit
from kernel_pipeline.statistics.verdicts import Verdict

from . import results
from .finals import How

FOLDER = "held_out"


class Other(Record):
    """A provider that was not written here, beside the called configuration: its time, the ratio of its time
    to the called configuration's with the 90 % interval, and the verdict on it. ``high`` is None after one
    round."""

    provider: Name
    us: Microseconds
    ratio: NotNegative
    low: NotNegative
    high: NotNegative | None
    verdict: Verdict


class HeldOutProblem(Record):
    """A drawn problem: the called provider with its configuration, how it was chosen, and its time in
    microseconds, which is None before the first round. ``failed`` has the reasons why providers have no
    time."""

    problem: Values
    called: Text
    provider: Name
    how: How
    us: Microseconds | None = None
    rounds: Count = 0
    others: tuple[Other, ...] = ()
    failed: dict[Name, Text] = field(default_factory=dict)


class HeldOut(Record):
    """The drawn problems of a kernel on one GPU. ``by`` is the size of a difference that counts."""

    kernel: Name
    gpu: Name
    baseline: Name
    draw: Count
    run: Text
    command: MaskedText
    commit: Commit | None
    at: When
    by: NotNegative
    problems: tuple[HeldOutProblem, ...]


def path(folder: Path, kernel: str, gpu: str, draw: int) -> Path:
    """Return the path of a draw's samples; its record lies beside them as ``.json``."""
    return folder / FOLDER / kernel / gpu / f"{draw}.jsonl"


def load(folder: Path, warn: Callable[[str], None], *, local: bool = True) -> list[HeldOut]:
    """Read all records below the folder, and with ``local`` this CPU's, sorted by kernel, GPU and draw. A
    file that is not a record is skipped with a sentence to ``warn``."""
    found = []
    for place in results.folders_of(folder, local=local):
        for file in results.listed(place, f"{FOLDER}/*/*/*.json", warn):
            try:
                found.append(HeldOut.from_json(file.read_bytes()))
            except (OSError, ValidationError):
                warn(f"{file} is not readable as held-out problems; skipped.")
    return sorted(found, key=lambda one: (one.kernel, one.gpu, one.draw))
