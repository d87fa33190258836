"""Make the rows of a comparison from its rounds. The rows themselves are in ``comparison``, which publishing
needs without the code that measures."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_pipeline.records.measurement import Launch

from ..points import notation
from ..verdicts.rounds import Rounds, medians
from .comparison import Compared


def compared(measured_rounds: Rounds) -> list[Compared]:
    """Return a row for each match that has rounds."""
    estimates, verdicts = measured_rounds.estimates(), measured_rounds.verdicts()
    found = []
    for match in measured_rounds.matches:
        a, b = match.candidates
        if middle := medians(measured_rounds.times(match)):
            last = [[turn.outcome.launch for turn in measured_rounds.timings_of(one)][-1:] for one in (a, b)]
            found.append(
                Compared(
                    problem=f"{notation.extent(a.point)} {notation.words(a.point)}".strip(),
                    a=notation.label(a.point),
                    b=notation.label(b.point),
                    a_us=middle[a],
                    b_us=middle[b],
                    estimate=estimates[match, b],
                    verdict=verdicts[match, b],
                    changed=_changed(*(launches[0] or () if launches else () for launches in last)),
                )
            )
    return found


def _changed(before: Sequence[Launch], after: Sequence[Launch]) -> str:
    """Return the fields of launches that differ: ``block 128 -> 256``."""
    if len(before) != len(after):
        return ""
    changes = [
        f"{name} {_word(getattr(one, name))} -> {_word(getattr(other, name))}"
        for one, other in zip(before, after, strict=True)
        for name in Launch.__struct_fields__
        if getattr(one, name) != getattr(other, name)
    ]
    return ", ".join(dict.fromkeys(changes))


def _word(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
