"""A comparison as a table, for a terminal or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from rich import box
from rich.table import Table

from pipeline.reporting.numbers import number
from pipeline.store.comparisons import ComparisonRow
from pipeline.verdicts.intervals import Estimate, Verdict

HEADINGS = ("problem", "a", "b", "a us", "b us", "b / a", "90 %", "b is")


@dataclass(frozen=True)
class Compared:
    """A point by both sides: times in microseconds, the ratio of b's to a's with its interval, and what
    follows; ``changed`` is what its launches say is another."""

    problem: str
    a: str
    b: str
    a_us: float
    b_us: float
    estimate: Estimate
    verdict: Verdict
    changed: str = ""


def compared(row: ComparisonRow) -> Compared:
    """A row that was kept, as tables and plots take it."""
    high = inf if row.high is None else row.high
    one = Estimate(row.rounds, row.ratio, row.low, high, 1.0)
    return Compared(row.problem, row.a, row.b, row.a_us, row.b_us, one, row.verdict, row.changed)


def interval(one: Estimate) -> str:
    """``0.985 to 0.991``."""
    return f"{one.low:.3f} to {one.high:.3f}" if isfinite(one.high) else ""


def _cells(one: Compared) -> tuple[str, ...]:
    return (
        one.problem,
        one.a,
        one.b,
        number(one.a_us),
        number(one.b_us),
        f"{one.estimate.ratio:.3f}",
        interval(one.estimate),
        f"{one.verdict}{f'; {one.changed}' if one.changed else ''}",
    )


def table(rows: Sequence[Compared], title: str) -> Table:
    """The rows, for a terminal."""
    found = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in HEADINGS:
        right = heading in ("a us", "b us", "b / a")
        found.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for one in rows:
        found.add_row(*_cells(one), style=None if one.verdict == "same" else "bold")
    return found


def markdown(rows: Sequence[Compared], title: str) -> str:
    """The rows as a table for a pull request."""
    lines = [f"**{title}**", "", f"| {' | '.join(HEADINGS)} |", "|---|---|---|--:|--:|--:|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cells(one))} |" for one in rows)])
