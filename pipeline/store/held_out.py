"""Records of held-out problems: problems that were drawn at random, with the configuration that callers of
``kernel_pipeline.ops`` get there beside torch and other projects. One JSON file for each kernel, GPU and
draw lies beside the samples of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

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


@dataclass(frozen=True)
class HeldOutSummary:
    """The results of a kernel. ``decided`` counts the problems with a verdict on the baseline, or where the
    baseline itself is called. ``within`` are those of them at which the called configuration is at most the
    difference that counts slower, and ``slower`` those with that verdict. ``over_baseline`` and ``over_best``
    are geometric means of the baseline's and of the fastest other provider's time over the called
    configuration's; None without times."""

    problems: int
    decided: int
    within: int
    slower: int
    over_baseline: float | None
    over_best: float | None


def summary(baseline: str, by: float, problems: Sequence[HeldOutProblem]) -> HeldOutSummary:
    """Sum up the results of a kernel."""
    calls_it = sum(one.provider == baseline for one in problems)
    beside = [other for one in problems for other in one.others if other.provider == baseline]
    decided = [other for other in beside if other.verdict != "undecided"]
    best = [min(other.ratio for other in one.others) for one in problems if one.others]
    ratios = [other.ratio for other in beside]
    return HeldOutSummary(
        problems=len(problems),
        decided=calls_it + len(decided),
        within=calls_it + sum(other.ratio >= 1 / (1 + by) for other in decided),
        slower=sum(other.verdict == "faster" for other in decided),
        over_baseline=geometric_mean(ratios) if ratios else None,
        over_best=geometric_mean(best) if best else None,
    )


def worst(problems: Sequence[HeldOutProblem], most: int) -> list[tuple[HeldOutProblem, Other]]:
    """Return at most ``most`` problems at which another provider is faster than the called configuration,
    with the fastest one; the largest loss first."""
    found = [(one, min(one.others, key=lambda other: other.ratio)) for one in problems if one.others]
    losses = [pair for pair in found if pair[1].ratio < 1]
    return sorted(losses, key=lambda pair: pair[1].ratio)[:most]
