"""The page of a judgement, and the page of a board with the judgements of many submissions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernel_pipeline.records.base import Values

from ..verdicts.board import BoardEntry, ranked
from ..verdicts.judged import NOT_RUN, Judged, Judgement, Speed
from .document import Items, Page, Section, Text
from .numbers import number
from .tables import TextTable

COLUMNS = (
    "submission",
    "verdict",
    "times as fast",
    "low",
    "high",
    "of torch.compile",
    "of best",
    "us",
    "host us",
    "own us",
    "own check",
    "reason",
)

NUMBERS = COLUMNS[2:10]

NOTE = (
    "`times as fast` compares with the problem's own code; `low` and `high` are its 90 % interval. `of "
    "torch.compile` and `of best` compare with the compiled code and with the submission that `best=` names. "
    "`us` is the median time of a call in the rounds. `host us` is the time until a call on a GPU returns to "
    "the host. `own us` is the mean time by events around each call, with the cache overwritten before, "
    "about as the format's own judge takes it; nothing audits it. On a CPU there is neither. Over several "
    "workloads, these are geometric means. `own check` is what the format's own judge says about the answers "
    "to the given inputs."
)


def of_judgement(judgement: Judgement) -> str:
    """Return the page of one judgement as HTML."""
    results = judgement.results
    notes = [
        f"Submissions were {judgement.isolation}.",
        f"{judgement.at:%Y-%m-%d %H:%M} UTC: {judgement.command}",
    ]
    if judgement.mode is not None:
        notes.append(f"The problem's module ran in mode {judgement.mode}, as its file leaves it.")
    notes += judgement.left_out
    found = [one.sentence() for one in results]
    blocks: list[Any] = [table(results, "Verdicts"), Text(NOTE, "note", has_code=True)]
    blocks += [_by_workload(one) for one in results if len(one.timed) > 1]
    title = _title(judgement.problem, judgement.workloads, judgement.gpu)
    return Page(
        title, [Items(notes)], [Section("Verdicts", blocks), Section("In words", [Items(found)])], {}
    ).html({})


def of_board(entries: Sequence[BoardEntry]) -> str:
    """Return the page of a board as HTML: a section for each problem, its workloads and a GPU."""
    groups: dict[tuple[str, str, Any], list[BoardEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.problem, entry.gpu, entry.workloads), []).append(entry)
    sections = []
    for (problem, gpu, workloads), some in groups.items():
        best = ranked(some)
        kinds = dict.fromkeys(one.isolation for one in best if one.isolation != NOT_RUN)
        blocks: list[Any] = [table([entry.judged for entry in best], Path(problem).name)]
        blocks += [Text(f"Submissions were {kind}.", "note") for kind in kinds]
        about = {"kernel": Path(problem).stem, "gpu": gpu}
        sections.append(Section(_title(problem, workloads, gpu), blocks, about))
    choices = {
        "kernel": {Path(one).stem: Path(one).stem for one, _, _ in groups},
        "gpu": {gpu: gpu for _, gpu, _ in groups},
    }
    return Page(
        "Submissions by problem and GPU", [Text(NOTE, "note", has_code=True)], sections, choices
    ).html({})


def _title(problem: str, workloads: Sequence[Values], gpu: str) -> str:
    count = len(workloads)
    at = _sizes(workloads[0]) if count == 1 else f"with {count} workloads"
    return f"{Path(problem).stem} {at} on {gpu}"


def _sizes(workload: Values) -> str:
    return " ".join(f"{name}={size}" for name, size in workload.items())


def table(results: Sequence[Judged], title: str) -> TextTable:
    """Return the verdicts as a table."""
    rows = [
        [
            one.submission,
            one.verdict,
            *_cells(one.speed),
            *(_times(one.over_compiled), _times(one.over_best)),
            _mean([each.us for each in one.timed]),
            _mean([each.host_us for each in one.timed if each.host_us is not None]),
            _mean([each.own_us for each in one.timed if each.own_us is not None]),
            one.own_check or "",
            "; ".join(why for why in (one.given_only, one.reason) if why is not None),
        ]
        for one in results
    ]
    strong = [place for place, one in enumerate(results) if one.verdict == "correct"]
    return TextTable(title, COLUMNS, rows, NUMBERS, strong)


def _by_workload(one: Judged) -> TextTable:
    """Return the times of a submission at each workload as a table."""
    rows = [
        [
            *(_sizes(each.workload), *_cells(each.speed)),
            *(_times(each.over_compiled), _times(each.over_best)),
            *(number(each.us), number(each.host_us), number(each.own_us)),
        ]
        for each in one.timed
    ]
    return TextTable(one.submission, ("workload", *NUMBERS), rows, NUMBERS)


def _mean(us: Sequence[float]) -> str:
    return number(geometric_mean(us) if us else None)


def _times(speed: Speed | None) -> str:
    return "" if speed is None else f"{speed.times:.2f}"


def _cells(speed: Speed | None) -> list[str]:
    return ["", "", ""] if speed is None else [f"{one:.2f}" for one in (speed.times, speed.low, speed.high)]
