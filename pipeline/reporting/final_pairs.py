"""Two machines side by side by their finals: how many times the one's time is the other's, and how many
times it would be if both reached the same share of their ceilings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.points.frozen import Values
from pipeline.store.finals import Final


@dataclass(frozen=True)
class FinalPair:
    """The finals of ours at one problem on both machines."""

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


def best_own(a: Iterable[Final], b: Iterable[Final]) -> list[FinalPair]:
    """At each problem where both machines had finals of ours, with the same source, the fastest of either."""
    own = [[row for row in rows if row.by == "own" and row.power == "burst"] for rows in (a, b)]
    places = [{_place(row) for row in rows} for rows in own]
    mine, theirs = (_fastest(row for row in rows if _place(row) in places[0] & places[1]) for rows in own)
    return [FinalPair(row, theirs[problem]) for problem, row in mine.items()]


def _fastest(rows: Iterable[Final]) -> dict[Values, Final]:
    found: dict[Values, Final] = {}
    for row in rows:
        other = found.setdefault(row.point.problem, row)
        if row.median_us < other.median_us:
            found[row.point.problem] = row
    return found


def _place(row: Final) -> tuple[str, Values, str]:
    return row.point.provider, row.point.problem, row.parts.source
