"""Finals as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from pipeline.points import notation
from pipeline.reporting.numbers import number, percent
from pipeline.store.finals import Final, decided, fastest_of_ours


def table(groups: Sequence[Sequence[Final]], title: str) -> Table:
    """The fastest of ours at each problem, with the rate that people compare, and each other's time over
    it."""
    found = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in ("kernel", "problem", "fastest of ours", "us", "of ceiling", "the others: time over ours"):
        right = heading in ("us", "of ceiling")
        found.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for group in groups:
        best = fastest_of_ours(group)
        if best is None:
            continue
        others = [row for row in group if row.power == "burst" and row.by != "own"]
        words = ", ".join(
            f"{row.point.provider} {row.against.ratio:.2f} "
            f"{decided(row.against.verdict, len(row.rounds_us)) or row.against.verdict}"
            for row in others
            if row.against
        )
        problem = f"{notation.extent(best.point)} {notation.words(best.point)}"
        name = notation.label(best.point)
        fraction = percent(best.rate.ceiling_fraction)
        found.add_row(best.point.kernel, problem, name, number(best.median_us), fraction, words)
    return found
