"""The problems at which others are faster than ours by more than 1 %, worst first, with the reasons.

The reasons come from the kernel's page, ``docs/kernels/KERNEL.md``, from the table below "Where it loses", or
from the table below "Where KERNEL loses" of a page that several kernels share. A line of the table has
providers, problems and the reason. The problems are ``all``, or values of dimensions
and machines, such as ``m=[512,2048] gpu=nvidia-h200``. The first line that fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernel_pipeline.declared import shown
from kernel_pipeline.errors import UserError

from .. import ROOT
from ..store.finals import ONE_ROUND, decided
from .cells import distrust_notes
from .field import HeadToHead, OtherRatio
from .headlines import entry_of
from .numbers import microseconds, speedup
from .tables import TextTable

PAGES = ROOT / "docs" / "kernels"

HEADING = "## Where it loses"

NOT_GIVEN = "no reason is given"

ELSEWHERE = "another run"
"""Marks a ratio of times from two runs."""


@dataclass(frozen=True)
class Reason:
    """Why the providers in ``others`` are faster at problems with the values in ``where``."""

    others: frozenset[str]
    where: Mapping[str, frozenset[str]]
    text: str

    def fits(self, versus: HeadToHead) -> bool:
        """Return whether the reason covers the problem and the fastest of the others there."""
        values = {"gpu": versus.gpu} | {name: shown(value) for name, value in versus.problem.items()}
        is_there = all(values.get(name) in some for name, some in self.where.items())
        return versus.lost[0] in self.others and is_there


def losses(swept: Sequence[HeadToHead], finals: Iterable[HeadToHead]) -> list[HeadToHead]:
    """Return the problems at which another is faster by more than 1 %, worst first.

    A problem's times come from finals if ours had finals there, else from the sweeps.
    """
    found = {one.place: one for one in [*swept, *finals]}
    lost = [one for one in found.values() if one.lost]
    return sorted(lost, key=lambda one: (one.others[one.lost[0]].ratio, one.place))


def table(some: Sequence[HeadToHead], machines: Mapping[str, str]) -> TextTable:
    """Return the table of the losses, a line for each problem."""
    return TextTable(
        title="Where others are faster",
        columns=(
            *("kernel", "machine", "problem", "time over ours", "fastest other", "us", "ours", "us"),
            *("also faster", "by", "reason"),
        ),
        rows=[_cells(one, machines.get(one.gpu, one.gpu)) for one in some],
        numbers=("us", "time over ours"),
        about=[{"gpu": one.gpu, "words": one.words} for one in some],
    )


def _cells(versus: HeadToHead, machine: str) -> list[str]:
    first, *others = versus.lost
    worst = versus.others[first]
    unasked = f"Not measured there of ours: {', '.join(versus.unasked)};" if versus.unasked else ""
    reason = next((one.text for one in reasons(versus.kernel, PAGES) if one.fits(versus)), NOT_GIVEN)
    return [
        versus.kernel,
        machine,
        versus.where,
        ratio(worst),
        worst.time.label,
        microseconds(worst.time.us, worst.time.is_bound),
        versus.ours.label,
        microseconds(versus.ours.us, versus.ours.is_bound),
        ", ".join(f"{name} {ratio(versus.others[name])}" for name in others),
        "finals" if versus.by_finals else "sweeps",
        f"{unasked} {reason}".strip(),
    ]


def doubts(some: Iterable[HeadToHead], machines: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each reason to distrust a ratio, with the problems; the mark ``!`` refers to it.

    With ``machines``, names by slug, each problem is followed by its machine.
    """
    return distrust_notes(
        (
            one.doubt,
            f"{versus.kernel} {versus.where}"
            + ("" if machines is None else f" on {machines.get(versus.gpu, versus.gpu)}"),
        )
        for versus in some
        for one in versus.others.values()
    )


def ratio(one: OtherRatio) -> str:
    """Return a ratio as text, with ``!`` if it is distrusted.

    Brackets say that its times are of two runs, that it rests on one round, or that the verdict is ``same``
    or ``undecided``.
    """
    if one.against is not None:
        more = decided(one.against.verdict, one.time.rounds)
    else:
        more = ", ".join([ELSEWHERE] * one.is_elsewhere + [ONE_ROUND] * (one.time.rounds == 1))
    return speedup(one.ratio) + "!" * bool(one.doubt) + (f" ({more})" if more else "")


@cache
def reasons(kernel: str, pages: Path) -> tuple[Reason, ...]:
    """Return all reasons on a kernel's page.

    Raises UserError for a line with an unknown provider or dimension, or without a reason.
    """
    entry = entry_of(kernel)
    if entry is None:
        return ()
    page, section = _section(kernel, pages)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    providers = {one.name for one in entry.loaded.kernel.providers}
    known = {"gpu", *entry.loaded.kernel.dimensions()}
    found = []
    for line in lines[2:]:
        named, problems, text, *_ = [cell.strip() for cell in line.strip("|").split("|")] + [""] * 3
        others = frozenset(re.findall(r"`(\w+)`", named))
        pairs = [word.partition("=") for word in problems.strip("`").split() if problems != "all"]
        where = {name: frozenset(values.strip("[]").split(",")) for name, _, values in pairs}
        if not (text and others and others <= providers and where.keys() <= known):
            raise UserError(
                f"{page}: write | `PROVIDER`, `PROVIDER` | all, or NAME=[VALUE,VALUE] | REASON | with "
                f"providers and dimensions of {kernel}, not {line}"
            )
        found.append(Reason(others, where, text.replace("`", "")))
    return tuple(found)


def _section(kernel: str, pages: Path) -> tuple[Path, str]:
    """Return the page with the kernel's reasons and its section; an empty section if there is none."""
    own = pages / f"{kernel}.md"
    shared = [(page, f"## Where {kernel} loses") for page in sorted(pages.glob("*.md"))]
    for page, heading in [(own, HEADING)] * own.is_file() + shared:
        _, found, section = page.read_text().partition(f"\n{heading}\n")
        if found:
            return page, section.partition("\n## ")[0]
    return own, ""
