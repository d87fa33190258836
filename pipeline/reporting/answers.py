"""The first screen of the report: four questions, each answered in at most six lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from .. import as_typed
from ..points.notation import plural
from ..store.comparisons import Comparison
from ..store.finals import ONE_ROUND, Final
from .content import Content
from .document import Items, Section, Text
from .field import HeadToHead
from .gpus import alone, groups, left_out
from .headlines import doubt, is_bound
from .losses import ratio
from .numbers import speedup

MOST_LINES = 6

COMMIT = 7
"""The number of characters of a commit that are shown."""

COMPARE = f"{as_typed('compare', 'kernel=NAME', 'a=COMMIT')} measures two commits side by side."

THROTTLED = "throttled, so an upper bound"
ONCE = f"finals of {ONE_ROUND}, which decides nothing"
EARLIER = "of an earlier source, measuring code or environment"

GPUS, FIELD, HISTORY = "GPU against GPU", "Where we lose", "Finals over commits"
"""The titles of the sections with the details."""


def section(content: Content) -> Section:
    """Return the section with the four answers: the faster GPU, faster others, slower commits, doubts."""
    answers = [_which_gpu(content), _who_is_faster(content), _slowed(content), _doubted(content)]
    return Section("In short", answers, look="answers")


def _answer(question: str, lines: Sequence[str], more: str = "") -> Section:
    """Return a question with its answer, cut to ``MOST_LINES``, and a link to the section ``more``."""
    shown = list(lines)
    if len(lines) > MOST_LINES:
        shown = [*lines[: MOST_LINES - 1], f"And {len(lines) - MOST_LINES + 1} more lines."]
    return Section(question, [Items(shown), *([Text("More:", link=more)] if more else [])])


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
    met = plural(len({one.place for one in (*content.field, *lost)}), "problem")
    if not lost:
        return _answer("Who beats us?", [f"Nobody by more than 1 %, at {met} with others."])
    by: dict[tuple[str, str], list[HeadToHead]] = {}
    for one in lost:
        by.setdefault((one.kernel, one.gpu), []).append(one)
    found = [
        f"Another is faster by more than 1 % at {len(lost)} of {met} with others. "
        "By kernel and machine, the worst first:"
    ]
    for (kernel, gpu), some in by.items():
        first = some[0]
        worst = first.others[first.lost[0]]
        found.append(
            f"{kernel} on {content.machines.get(gpu, gpu)}, {plural(len(some), 'problem')}; the worst: "
            f"{worst.time.label} takes {ratio(worst)} of our time at {first.where}."
        )
    return _answer("Who beats us?", found, FIELD)


def _slowed(content: Content) -> Section:
    two = [one for one in content.comparisons if one.kernel in content.about and one.a.commit != one.b.commit]
    newest = sorted(two, key=lambda one: one.at, reverse=True)
    rest = sorted(set(content.about) - {one.kernel for one in two})
    found = [_compared(one, content.machines) for one in newest] or [f"Not compared: {COMPARE}"]
    if newest and rest:
        found.insert(0, f"Not compared at two commits: {', '.join(rest)}; {COMPARE}")
    return _answer("Did commits slow anything?", found, HISTORY if content.loaded.every_final else "")


def _compared(one: Comparison, names: Mapping[str, str]) -> str:
    count = Counter(row.verdict for row in one.rows)
    undecided = f", {count['undecided']} undecided" * bool(count["undecided"])
    sides = " to ".join(side.commit[:COMMIT] if side.commit else side.name for side in (one.a, one.b))
    return (
        f"{one.kernel}, {sides}, on {names.get(one.gpu, one.gpu)}, {one.at:%Y-%m-%d}: "
        f"{count['slower']} slower, {count['faster']} faster{undecided} of {plural(len(one.rows), 'point')}."
    )


def _doubted(content: Content) -> Section:
    found, timed = doubts(content.rows, content.loaded.finals)
    lines = [
        f"{'All ' * (reason == EARLIER and count == timed)}{plural(count, 'time')}: {reason}."
        for reason, count in found
    ]
    return _answer("What is not to be trusted?", lines or ["Nothing."])


def doubts(rows: pd.DataFrame, finals: Iterable[Final]) -> tuple[list[tuple[str, int]], int]:
    """Return the count of distrusted times by reason, most frequent first, and of all timed rows."""
    timed = rows[rows["status"] == "ok"]
    found = Counter[str](
        THROTTLED if is_bound(row) else re.sub(r"\d[\d.]*", "…", doubt(row))
        for row in timed[timed["valid"].eq(False)].to_dict("records")
    )
    found.update(timed["incomparable"].dropna())
    found[ONCE] = sum(len(one.rounds_us) == 1 for one in finals)
    found[EARLIER] = int(timed["old"].ne("").sum())
    return [(reason, count) for reason, count in found.most_common() if count], len(timed)
