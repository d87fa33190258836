"""GPU against GPU for a terminal or a pull request, and what follows in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from pipeline.points import notation
from pipeline.reporting.gpus import CommonProblem, GpuGroup
from pipeline.reporting.numbers import number, speedup

HEADINGS = (
    *("problem", "a's best", "b's best", "bound", "by"),
    *("a us", "b us", "b / a", "ceilings", "a on b", "b on a"),
)

WORDS = 5
"""Columns that hold words; the others hold numbers."""


def cells(one: CommonProblem) -> tuple[str, ...]:
    """A line of the table."""
    return (
        f"{one.extent} {one.words}".strip(),
        one.a_best,
        one.b_best if one.differs else "the same",
        one.bound,
        "finals" if one.by_finals else "sweeps",
        number(one.a_us),
        number(one.b_us),
        number(one.ratio),
        number(one.by_ceilings),
        number(one.a_on_b),
        number(one.b_on_a),
    )


def table(some: Sequence[CommonProblem], title: str) -> Table:
    """Common problems, for a terminal."""
    found = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for place, heading in enumerate(HEADINGS):
        found.add_column(heading, justify="left" if place < WORDS else "right", overflow="fold")
    for one in some:
        found.add_row(*cells(one))
    return found


def markdown(some: Sequence[CommonProblem], title: str) -> str:
    """Common problems as a table for a pull request."""
    marks = "|---" * WORDS + "|---:" * (len(HEADINGS) - WORDS)
    lines = [f"**{title}**", "", f"| {' | '.join(HEADINGS)} |", f"{marks}|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells(one))} |" for one in some)])


def sentence(group: GpuGroup) -> str:
    """The means of two GPUs over the problems with the same bound."""
    by_ceilings = "" if group.by_ceilings is None else f"; by their ceilings {speedup(group.by_ceilings)}"
    problems = notation.plural(group.problems, "problem")
    return f"bound by {group.bound}: {problems}, b / a {speedup(group.ratio)}{by_ceilings}."
