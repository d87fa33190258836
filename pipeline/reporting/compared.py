"""What a comparison found: a row a point, their summary, and the rows as they are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from statistics import geometric_mean

from pipeline.points import notation
from pipeline.reporting.ratios import Compared
from pipeline.store.comparisons import ComparisonRow
from pipeline.store.record import Launch
from pipeline.verdicts.rounds import Contest, Rival, medians


def rows(contest: Contest) -> list[Compared]:
    """What is known of each match that has rounds."""
    estimates, verdicts = contest.estimates(), contest.verdicts()
    found = []
    for match in contest.matches:
        a, b = match.rivals
        middle = medians(contest.times(match))
        if middle:
            problem = f"{notation.extent(a.point)} {notation.words(a.point)}".strip()
            changed = _changed(_launch(contest, a), _launch(contest, b))
            names = notation.label(a.point), notation.label(b.point)
            one, verdict = estimates[match, b], verdicts[match, b]
            found.append(Compared(problem, *names, middle[a], middle[b], one, verdict, changed))
    return found


def summary(found: Sequence[Compared]) -> str:
    """Counts and the mean."""
    counts = Counter(row.verdict for row in found)
    words = ", ".join(f"{counts[word]} {word}" for word in ("same", "faster", "slower", "undecided"))
    mean = geometric_mean([row.estimate.ratio for row in found])
    return f"{notation.points(len(found))}: b is {words}. Geometric mean of b / a: {mean:.4f}."


def kept(row: Compared) -> ComparisonRow:
    """A row as the comparison's file keeps it."""
    return ComparisonRow(
        problem=row.problem,
        a=row.a,
        b=row.b,
        a_us=row.a_us,
        b_us=row.b_us,
        rounds=row.estimate.rounds,
        ratio=row.estimate.ratio,
        low=row.estimate.low,
        high=row.estimate.high if isfinite(row.estimate.high) else None,
        verdict=row.verdict,
        changed=row.changed,
    )


def _launch(contest: Contest, rival: Rival) -> tuple[Launch, ...] | None:
    told = [turn.outcome.launch for turn in contest.of(rival)]
    return told[-1] if told else None


def _changed(before: Sequence[Launch] | None, after: Sequence[Launch] | None) -> str:
    """What of a launch is another: ``block 128 -> 256``."""
    if not before or not after or len(before) != len(after):
        return ""
    found = []
    for one, other in zip(before, after, strict=True):
        for name in Launch.model_fields:
            old, new = getattr(one, name), getattr(other, name)
            if old != new:
                found.append(f"{name} {_word_of(old)} -> {_word_of(new)}")
    return ", ".join(dict.fromkeys(found))


def _word_of(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
