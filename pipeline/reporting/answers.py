"""The first screen of the report: what its readers ask first, each answered in at most six lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pipeline.points.notation import plural
from pipeline.reporting.content import Content
from pipeline.reporting.document import Items, Section, Text
from pipeline.reporting.field import HeadToHead
from pipeline.reporting.gpus import alone, groups, left_out
from pipeline.reporting.losses import ratio
from pipeline.reporting.numbers import speedup
from pipeline.reporting.tables import TextTable
from pipeline.store.comparisons import Comparison
from pipeline.store.finals import ONE_ROUND, Final

MOST_LINES = 6

COMMIT = 7
"""Characters of a commit."""

COMPARE = "python -m pipeline.compare kernel=NAME a=COMMIT measures two commits side by side."
NOT_COMPARED = f"Not compared: {COMPARE}"


THROTTLED = "throttled, so an upper bound"
ONCE = f"finals of {ONE_ROUND}, which decides nothing"
EARLIER = "of an earlier source, measuring code or environment"


GPUS, FIELD, HISTORY, DOUBTS = "GPU against GPU", "Where we lose", "Finals over commits", "Not to be trusted"
"""The titles of the sections that say more."""


@dataclass(frozen=True)
class Doubt:
    """Why some times are not to be trusted as they stand, how many by kernel and GPU, and whether these are
    all that there are."""

    reason: str
    counts: Mapping[tuple[str, str], int]
    is_of_all: bool = False

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())


def section(content: Content, found: Sequence[Doubt]) -> Section:
    """The faster GPU, faster providers, slower commits, and times to doubt."""
    answers = [_which_gpu(content), _who_is_faster(content), _slowed(content), _doubted(found)]
    return Section("In short", answers, look="answers")


def _answer(question: str, lines: Sequence[str], more: str) -> Section:
    """A question, the lines that answer it, and the title of the section that says more."""
    shown = list(lines)
    if len(lines) > MOST_LINES:
        shown = [*lines[: MOST_LINES - 1], f"And {len(lines) - MOST_LINES + 1} more lines."]
    return Section(question, [Items(shown), *([Text("More:", link=more)] if more else [])])


def doubts(rows: pd.DataFrame, finals: Iterable[Final]) -> list[Doubt]:
    """Times by what there is to say against them, the rarest first: a row's reason where it is not valid or
    not comparable, one round of finals, rows of an earlier source, measuring code or environment."""
    timed = rows[rows["status"] == "ok"]
    reasons = [
        *(
            (THROTTLED if isinstance(row["throttle"], str) else _kind(row["invalid_reason"]), row)
            for row in timed[timed["valid"].eq(False)].to_dict("records")
        ),
        *((row["incomparable"], row) for row in timed[timed["incomparable"].notna()].to_dict("records")),
    ]
    found: dict[str, Counter[tuple[str, str]]] = {}
    for reason, row in reasons:
        found.setdefault(reason, Counter())[row["kernel"], row["gpu"]] += 1
    old = timed[timed["stale"].map(bool).astype(bool)]
    found[ONCE] = Counter((one.point.kernel, one.origin.gpu) for one in finals if len(one.rounds_us) == 1)
    found[EARLIER] = Counter(zip(old["kernel"], old["gpu"], strict=True))
    some = (
        Doubt(reason, counts, reason == EARLIER and len(old) == len(timed))
        for reason, counts in found.items()
        if counts
    )
    return sorted(some, key=lambda one: one.total)


def table(some: Sequence[Doubt], names: Mapping[str, str]) -> TextTable:
    """A line a reason: how many times, and of which kernels on which machines."""
    return TextTable(
        title="Times by what there is to say against them",
        columns=("reason", "times", "where"),
        rows=[[one.reason, str(one.total), _where(one, names)] for one in some],
        numbers=("times",),
    )


def _where(doubt: Doubt, names: Mapping[str, str]) -> str:
    by_gpu: dict[str, list[str]] = {}
    for (kernel, gpu), count in sorted(doubt.counts.items()):
        by_gpu.setdefault(gpu, []).append(f"{kernel} {count}")
    return "; ".join(f"{names.get(gpu, gpu)}: {', '.join(some)}" for gpu, some in by_gpu.items())


def _kind(reason: str | None) -> str:
    """A reason without its numbers."""
    return re.sub(r"\d[\d.]*", "…", reason or "no reason was recorded")


def _which_gpu(content: Content) -> Section:
    names = content.machines
    found = [
        f"Bound by {one.bound}, {plural(one.problems, 'problem')}: {names[one.b]} takes "
        f"{speedup(one.ratio)} of {names[one.a]}'s time; by their ceilings "
        f"{speedup(one.by_ceilings) or 'unknown'}."
        for one in groups(content.common_problems)
    ]
    if not found:
        gpus = [name for slug, name in names.items() if not slug.startswith("cpu-")]
        line = alone(content.common_problems, content.rows, names)
        found = [line or (f"Only {gpus[0]} has results." if gpus else "No GPU has results.")]
    found += left_out(content.other_sources, names)
    return _answer("Which GPU is faster?", found, GPUS if content.common_problems else "")


def _who_is_faster(content: Content) -> Section:
    lost = content.losses
    met = len({one.place for one in (*content.field, *lost)})
    if not lost:
        return _answer(
            "Who beats us?", [f"Nobody by more than 1 %, at {plural(met, 'problem')} with others."], ""
        )
    by: dict[tuple[str, str], list[HeadToHead]] = {}
    for one in lost:
        by.setdefault((one.kernel, one.gpu), []).append(one)
    found = [
        f"Another is faster by more than 1 % at {len(lost)} of {plural(met, 'problem')} with others. "
        "By kernel and machine, the worst first:"
    ]
    for (kernel, gpu), some in by.items():
        found.append(
            f"{kernel} on {content.machines.get(gpu, gpu)}, {plural(len(some), 'problem')}; the worst: "
            f"{_worst(some)}."
        )
    return _answer("Who beats us?", found, FIELD)


def _worst(lost: Sequence[HeadToHead]) -> str:
    first = lost[0]
    worst = first.others[first.lost[0]]
    return f"{worst.time.label} takes {ratio(worst)} of our time at {first.where}"


def _slowed(content: Content) -> Section:
    two = [one for one in content.comparisons if one.kernel in content.about and one.a.commit != one.b.commit]
    newest = sorted(two, key=lambda one: one.at, reverse=True)
    rest = sorted(set(content.about) - {one.kernel for one in two})
    found = [_compared(one, content.machines) for one in newest]
    if found and rest:
        found.insert(0, f"Not compared at two commits: {', '.join(rest)}; {COMPARE}")
    more = HISTORY if content.loaded.every_final else ""
    return _answer("Did commits slow anything?", found or [NOT_COMPARED], more)


def _compared(one: Comparison, names: Mapping[str, str]) -> str:
    count = Counter(row.verdict for row in one.rows)
    undecided = f", {count['undecided']} undecided" * bool(count["undecided"])
    sides = " to ".join(side.commit[:COMMIT] if side.commit else side.name for side in (one.a, one.b))
    return (
        f"{one.kernel}, {sides}, on {names.get(one.gpu, one.gpu)}, {one.at:%Y-%m-%d}: "
        f"{count['slower']} slower, {count['faster']} faster{undecided} of {plural(len(one.rows), 'point')}."
    )


def _doubted(found: Sequence[Doubt]) -> Section:
    sentences = [
        f"{'All ' * one.is_of_all}{plural(one.total, 'time')}: {one.reason}." for one in reversed(found)
    ]
    sentences = sentences or ["Nothing."]
    return _answer("What is not to be trusted?", sentences, DOUBTS if found else "")
