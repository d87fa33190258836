"""The rows of a comparison from the rounds that were measured."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_pipeline.records.measurement import Launch
from pipeline.points import notation
from pipeline.reporting.comparison import Compared
from pipeline.verdicts.rounds import Candidate, Rounds, medians


def compared(measured_rounds: Rounds) -> list[Compared]:
    """What is known of each match that has rounds."""
    estimates, verdicts = measured_rounds.estimates(), measured_rounds.verdicts()
    found = []
    for match in measured_rounds.matches:
        a, b = match.candidates
        middle = medians(measured_rounds.times(match))
        if middle:
            problem = f"{notation.extent(a.point)} {notation.words(a.point)}".strip()
            changed = _changed(_launch(measured_rounds, a), _launch(measured_rounds, b))
            names = notation.label(a.point), notation.label(b.point)
            one, verdict = estimates[match, b], verdicts[match, b]
            found.append(Compared(problem, *names, middle[a], middle[b], one, verdict, changed))
    return found


def _launch(measured_rounds: Rounds, candidate: Candidate) -> tuple[Launch, ...] | None:
    launches = [turn.outcome.launch for turn in measured_rounds.timings_of(candidate)]
    return launches[-1] if launches else None


def _changed(before: Sequence[Launch] | None, after: Sequence[Launch] | None) -> str:
    """What of a launch is another: ``block 128 -> 256``."""
    if not before or not after or len(before) != len(after):
        return ""
    found = []
    for one, other in zip(before, after, strict=True):
        for name in Launch.__struct_fields__:
            old, new = getattr(one, name), getattr(other, name)
            if old != new:
                found.append(f"{name} {_word_of(old)} -> {_word_of(new)}")
    return ", ".join(dict.fromkeys(found))


def _word_of(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
