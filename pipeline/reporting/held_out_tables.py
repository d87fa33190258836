"""Tables of held-out problems: a line for each kernel, and the problems at which another provider wins by
most."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_pipeline.records.point import Point

from ..points import notation
from ..store.held_out import HeldOut, HeldOutProblem, summary, worst
from .numbers import number
from .tables import TextTable

WORST = 10
"""The number of problems in the table of losses."""


def problem_text(one: HeldOut, problem: HeldOutProblem) -> str:
    """Write a drawn problem."""
    point = Point(kernel=one.kernel, provider=problem.provider, problem=problem.problem)
    return f"{notation.extent(point)} {notation.words(point)}".strip()


def kernels_table(found: Sequence[HeldOut]) -> TextTable:
    """Return the table with a line for each kernel, GPU and draw."""
    rows = []
    for one in found:
        of = summary(one.baseline, one.by, one.problems)
        rows.append(
            [
                *(one.kernel, one.gpu, str(one.draw), str(of.problems), str(of.decided)),
                f"{of.within / of.decided:.0%}" if of.decided else "",
                str(of.slower),
                *("" if mean is None else f"{mean:.3f}" for mean in (of.over_baseline, of.over_best)),
            ]
        )
    columns = ("kernel", "gpu", "draw", "problems", "decided", "level or faster", "slower")
    means = ("x baseline", "x best other")
    return TextTable(
        title="Problems that nobody tuned",
        columns=(*columns, *means),
        rows=rows,
        numbers=(*columns[2:], *means),
    )


def losses_table(found: Sequence[HeldOut]) -> TextTable | None:
    """Return the table of the problems at which another provider is faster than the called configuration;
    None if there is no such problem."""
    losses = [(*pair, one) for one in found for pair in worst(one.problems, WORST)]
    losses = sorted(losses, key=lambda loss: loss[1].ratio)[:WORST]
    rows = [
        [
            *(one.kernel, one.gpu, problem_text(one, problem), problem.called, problem.how),
            *("" if problem.us is None else number(problem.us), other.provider, number(other.us)),
            *(f"{1 / other.ratio:.3f}", "one round" if problem.rounds == 1 else other.verdict),
        ]
        for problem, other, one in losses
    ]
    columns = ("kernel", "gpu", "problem", "called", "chosen", "us", "other", "other us", "called / other")
    if not rows:
        return None
    return TextTable(
        title="Where another provider is faster by most",
        columns=(*columns, "other is"),
        rows=rows,
        numbers=("us", "other us", "called / other"),
    )
