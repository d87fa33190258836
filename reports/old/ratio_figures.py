"""Tables of the documentation's figures that set this repository's fastest providers beside others.
``python -m pipeline.docs`` writes them into pages. A ratio is the other's time over ours: above 1 ours is the
faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Self

from pipeline import UserError
from pipeline.points import notation
from pipeline.reporting.evidence_figures import markdown, place
from pipeline.reporting.field import HeadToHead, scores
from pipeline.reporting.frames import headline_of
from pipeline.reporting.losses import doubts, marked, note
from pipeline.reporting.numbers import RATES, number, percent, speedup
from pipeline.store.finals import Final, decided, fastest_of_ours

CEILING = "ceiling"
"""Stands where a provider's name would: what was asked is a share of the ceiling."""


@dataclass(frozen=True)
class AskedShare:
    """A share of another provider's speed, or of the ceiling, that was asked of ours: at each problem, or in
    the geometric mean over them."""

    of: str
    share: float
    in_the_mean: bool

    @classmethod
    def read(cls, word: str) -> Self:
        """Of ``each=torch:0.97``, ``each=ceiling:0.9`` or ``mean=torch:1.0``. Raises UserError for others."""
        name, _, value = word.partition("=")
        of, _, share = value.partition(":")
        try:
            return cls(of, float(share), name == "mean")
        except ValueError:
            raise UserError(f"write {name}=PROVIDER:SHARE or each={CEILING}:SHARE, not {word}.") from None

    def answer(self, seen: Sequence[tuple[str, float]]) -> str:
        """A sentence: at which of these problems, each with its share, it is met."""
        whole = "the ceiling" if self.of == CEILING else f"the speed of `{self.of}`"
        wanted = whole if self.share == 1 else f"{100 * self.share:g} % of {whole}"
        if self.in_the_mean:
            mean = geometric_mean([share for _, share in seen])
            word = "met" if mean >= self.share else "missed"
            so = f"{word}, {percent(mean)} over {len(seen)} problems"
            return f"Asked was {wanted} in geometric mean: {so}."
        missed = [f"{name} ({percent(share)})" for name, share in seen if share < self.share]
        if len(seen) == 1:
            return f"Asked was {wanted}: {f'missed at {missed[0]}' if missed else f'met at {seen[0][0]}'}."
        met = f"met at {len(seen) - len(missed)} of {len(seen)} problems"
        but = f". Missed at {', '.join(missed)}" if missed else ""
        return f"Asked was {wanted} at each problem: {met}{but}."


def compared(row: Final) -> str:
    """The ratio of a final that was compared, and its verdict where that is not what the ratio says."""
    assert row.against is not None, "it was compared with ours"
    said = decided(row.against.verdict, len(row.rounds_us))
    return speedup(row.against.ratio) + (f" ({said})" if said else "")


def ratios(
    problems: Sequence[Sequence[Final]],
    others: Sequence[str],
    asked: Sequence[AskedShare],
    x: str,
    wanted: int,
) -> Iterator[str]:
    """A caption's end, a table, and a sentence for each that was asked, of finals of one machine and power.

    ``problems`` has all finals of each problem, one of ours among them, in the table's order. ``wanted`` is
    how many problems a page asked for. Of a provider that stands there twice the faster counts.
    """
    lines: list[tuple[Final, dict[str, Final]]] = []
    for some in problems:
        ours = fastest_of_ours(some)
        assert ours is not None, "a problem without any is left out"
        beside: dict[str, Final] = {}
        for row in sorted(some, key=lambda row: row.median_us, reverse=True):
            if row.against is not None and row.point.provider != ours.point.provider:
                beside[row.point.provider] = row
        lines.append((ours, beside))
    shown = [name for name in others if any(name in (*beside, ours.point.provider) for ours, beside in lines)]
    compared = {headline_of(ours) for ours, _ in lines}
    rates = [one for one in RATES if one in compared]
    header = [x, "dtype", "fastest of ours", "us", *(RATES[one] for one in rates), "of ceiling", "rounds"]
    rows = [
        [
            *place(ours.point),
            f"`{notation.label(ours.point)}`",
            number(ours.median_us),
            *(number(getattr(ours.rate, one)) if headline_of(ours) == one else "" for one in rates),
            percent(ours.rate.ceiling_fraction),
            str(len(ours.rounds_us)),
            *(_beside(name, ours, beside) for name in shown),
        ]
        for ours, beside in lines
    ]
    known = {name: [_ratio(beside[name]) for _, beside in lines if name in beside] for name in shown}
    if len(rows) > 1:
        means = [f"{speedup(geometric_mean(some))} of {len(some)}" if some else "" for some in known.values()]
        rows.append(["geometric mean", *[""] * (len(header) - 1), *means])
    commits = sorted({(row.origin.commit or "")[:7] for some in problems for row in some})
    lacking = f" There are none at {wanted - len(lines)} of the {wanted} problems." * (wanted > len(lines))
    yield f"of commit{'s' * (len(commits) > 1)} {', '.join(f'`{one}`' for one in commits)}.{lacking}"
    yield markdown([*header, *(f"`{name}`" for name in shown)], rows, 3)
    for one in asked:
        seen = list(_seen(one, lines))
        if len(seen) > one.in_the_mean:
            yield one.answer(seen)


def _ratio(row: Final) -> float:
    """Its time over that of our fastest."""
    return 1.0 if row.against is None else row.against.ratio


def _beside(name: str, ours: Final, beside: dict[str, Final]) -> str:
    if name == ours.point.provider:
        return "itself"
    return compared(beside[name]) if name in beside else ""


def _seen(asked: AskedShare, lines: Sequence[tuple[Final, dict[str, Final]]]) -> Iterator[tuple[str, float]]:
    """By problem the share that was asked for, where it is known."""
    for ours, beside in lines:
        name = " ".join(filter(None, place(ours.point)))
        if asked.of == CEILING and ours.rate.ceiling_fraction is not None:
            yield name, ours.rate.ceiling_fraction
        elif asked.of in beside:
            yield name, _ratio(beside[asked.of])


def dispatched(problems: Sequence[Sequence[Final]]) -> str:
    """A table of what a caller gets at problems with finals, by how it is chosen, over the fastest of ours.
    Without a line, where no final says it, it is empty."""
    groups: dict[str, list[float]] = {}
    for row in (row for some in problems for row in some):
        if row.dispatched is not None:
            groups.setdefault(row.dispatched, []).append(_ratio(row))
    rows = [
        [how, str(len(those)), speedup(geometric_mean(those)), speedup(max(those))]
        for how, those in sorted(groups.items())
    ]
    return markdown(["chosen", "problems", "geometric mean", "most"], rows, 1) if rows else ""


def against(some: Sequence[HeadToHead], others: Sequence[str]) -> str:
    """A table with a line for each of the others, over all problems of one machine by the sweeps."""
    header = ["other", "problems", "geometric mean", "least", "faster than ours by more than 1 % at"]
    rows = []
    for name, score in scores(some, others).items():
        ahead = [one for one in some if name in one.rivals and one.rivals[name].is_faster]
        ahead.sort(key=lambda one: (one.rivals[name].ratio, one.place))
        said = [", ".join(filter(None, (marked(one.rivals[name]), note(one.rivals[name])))) for one in ahead]
        cells = ", ".join(f"{one.extent} {one.words} ({how})" for one, how in zip(ahead, said, strict=True))
        rows.append(
            [f"`{name}`", str(score.problems), speedup(score.mean), speedup(score.worst), cells or "none"]
        )
    return "\n\n".join([markdown(header, rows, 1), *doubts(some)])
