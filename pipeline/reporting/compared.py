"""The rows of a comparison from the rounds that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.points import notation
from pipeline.reporting.comparison import Compared
from pipeline.store.record import Launch
from pipeline.verdicts.rounds import Contest, Rival, medians


def compared(contest: Contest) -> list[Compared]:
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


def _launch(contest: Contest, rival: Rival) -> tuple[Launch, ...] | None:
    launches = [turn.outcome.launch for turn in contest.of(rival)]
    return launches[-1] if launches else None


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
