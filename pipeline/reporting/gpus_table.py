"""GPU against GPU for a terminal or a pull request, and what follows in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from pipeline.reporting.gpus import CommonProblem, GpuPair
from pipeline.reporting.gpus_section import percentage
from pipeline.reporting.numbers import number, speedup

HEADINGS = (
    *(
        "problem",
        "a's best",
        "b's best",
        "a us",
        "b us",
        "b / a",
        "ceilings",
        "explained",
        "a on b",
        "b on a",
    ),
)

WORDS = 3
"""Columns that hold words; the others hold numbers."""


def cells(one: CommonProblem) -> tuple[str, ...]:
    """A line of the table."""
    return (
        f"{one.extent} {one.words}".strip(),
        one.a_best,
        one.b_best if one.differs else "the same",
        number(one.a_us),
        number(one.b_us),
        number(one.ratio),
        number(one.by_ceilings),
        percentage(one.explained),
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


def sentence(pair: GpuPair) -> str:
    """What follows for two GPUs at problems with the same words."""
    problems = f"{pair.problems} problem{'s' * (pair.problems != 1)}"
    parts = [f"{pair.words}: {problems}, b / a {speedup(pair.ratio)}".removeprefix(": ")]
    if pair.by_ceilings is not None:
        part = f"by their ceilings {speedup(pair.by_ceilings)}"
        if pair.explained is not None:
            part += f", which explains {percentage(pair.explained)} of the difference"
        parts.append(part)
    parts.append(f"other best configurations at {pair.differing}")
    costs = [
        f"{whose} costs {speedup(cost)} times its own"
        for whose, cost in (("a's best on b", pair.a_on_b), ("b's best on a", pair.b_on_a))
        if cost is not None
    ]
    if costs:
        parts.append(f"{', '.join(costs)}, at most {speedup(pair.worst)}")
    return "; ".join(parts) + "."
