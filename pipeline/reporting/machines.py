"""Two machines side by side, by their finals: how many times the one's time is the other's, and how many
times it would be if both reached the same share of their ceilings.

Nothing was measured together, so that there is no verdict and no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from pipeline.points import notation
from pipeline.points.frozen import Values
from pipeline.reporting.numbers import number
from pipeline.store.finals import Final

HEADINGS = ("problem", "provider", "a", "b", "a us", "b us", "b / a", "by ceilings", "beyond")


@dataclass(frozen=True)
class FinalPair:
    """A provider's finals at one problem on both machines."""

    a: Final
    b: Final

    @property
    def ratio(self) -> float:
        """b's time over a's."""
        return self.b.median_us / self.a.median_us

    @property
    def by_ceilings(self) -> float | None:
        """The ratio if both reached the same share of their ceilings; None where one is not known."""
        shares = self.a.rate.ceiling_fraction, self.b.rate.ceiling_fraction
        if shares[0] is None or not shares[1]:
            return None
        return self.ratio * shares[1] / shares[0]


def pairs(a: Iterable[Final], b: Iterable[Final]) -> list[FinalPair]:
    """The finals that both machines had: of a provider at a problem, in whatever configuration was best."""
    there = {_place(row): row for row in b if row.power == "burst"}
    return [FinalPair(row, there[_place(row)]) for row in a if row.power == "burst" and _place(row) in there]


def best_own(a: Iterable[Final], b: Iterable[Final]) -> list[FinalPair]:
    """At each problem where both machines had finals of ours the fastest of either."""
    mine, theirs = _fastest_own(a), _fastest_own(b)
    return [FinalPair(row, theirs[problem]) for problem, row in mine.items() if problem in theirs]


def _fastest_own(rows: Iterable[Final]) -> dict[Values, Final]:
    found: dict[Values, Final] = {}
    for row in rows:
        if row.by == "own" and row.power == "burst":
            other = found.setdefault(row.point.problem, row)
            if row.median_us < other.median_us:
                found[row.point.problem] = row
    return found


def _place(row: Final) -> tuple[str, Values]:
    return row.point.provider, row.point.problem


def cells(some: Sequence[FinalPair]) -> list[Mapping[str, str]]:
    """A line for each pair, by heading."""
    return [
        dict(
            zip(
                HEADINGS,
                (
                    f"{notation.extent(one.a.point)} {notation.words(one.a.point)}".strip(),
                    one.a.point.provider,
                    notation.configuration(one.a.point),
                    notation.configuration(one.b.point),
                    number(one.a.median_us),
                    number(one.b.median_us),
                    number(one.ratio),
                    number(one.by_ceilings),
                    "" if one.by_ceilings is None else number(one.ratio / one.by_ceilings),
                ),
                strict=True,
            )
        )
        for one in some
    ]


def table(some: Sequence[FinalPair], title: str) -> Table:
    """The pairs, for a terminal."""
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for heading in HEADINGS:
        found.add_column(heading, justify="left" if heading in HEADINGS[:4] else "right", overflow="fold")
    for line in cells(some):
        found.add_row(*line.values())
    return found


def markdown(some: Sequence[FinalPair], title: str) -> str:
    """The pairs as a table for a pull request."""
    lines = [f"**{title}**", "", f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    return "\n".join([*lines, *(f"| {' | '.join(line.values())} |" for line in cells(some))])
