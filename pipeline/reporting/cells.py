"""Table cells for times and ratios with their marks, and the notes that explain the marks.

A row is a mapping by the columns of a frame.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..points.notation import plural
from .headlines import NO_REASON, is_bound, is_distrusted
from .numbers import microseconds, speedup

MOST_CHARACTERS = 200
"""The maximum length of a reason in a note: compilers' messages can fill pages. The ledger has it whole."""

TIE = "~"
TIE_NOTE = f"{TIE} no difference: it is within the noise floor or a confidence interval."

INCOMPARABLE = "?"
"""Marks a time that can't be compared and has no ratio."""

Row = Mapping[Any, Any]

FATE = {
    "not_judged": "not judged",
    "incorrect": "incorrect",
    "compile_error": "failed to compile",
    "runtime_error": "failed at run time",
    "out_of_memory": "ran out of memory",
    "timeout": "took too long",
}
"""The statuses without a time in words."""


def time_cell(row: Row) -> str:
    """Return a row's time with its marks."""
    mark = "!" * is_distrusted(row) + INCOMPARABLE * isinstance(row["incomparable"], str)
    return microseconds(row["median_us"], is_bound(row)) + mark


def ratio_cell(row: Row) -> str:
    """Return the baseline's time over the row's, marked if it is a tie or distrusted."""
    text = speedup(row["speedup"])
    return text + TIE * bool(text and row["tied"]) + "!" * bool(text and row["doubt"])


def problem_of(row: Row) -> str:
    """Return a row's kernel and problem in words."""
    return " ".join(filter(None, (row["kernel"], row["extent"], row["words"])))


def _by_reason(found: Iterable[tuple[str | None, str]]) -> dict[str, str]:
    """Return the places of each reason as a list in text; places without a reason are left out."""
    places: dict[str, dict[str, None]] = {}
    for why, where in found:
        if why:
            places.setdefault(why, {})[where] = None
    return {why: ", ".join(some) for why, some in places.items()}


def distrust_notes(found: Iterable[tuple[str | None, str]]) -> list[str]:
    """Return a sentence for each reason of the mark ``!``, with its places."""
    return [f"! Not to be trusted at {where}: {why}." for why, where in _by_reason(found).items()]


def incomparable_notes(rows: Iterable[Row]) -> list[str]:
    """Return a sentence for each reason of the mark ``?``, with the problems that have no ratio."""
    found = ((row["incomparable"], problem_of(row)) for row in rows if isinstance(row["incomparable"], str))
    return [f"{INCOMPARABLE} no ratio at {where}: {why}." for why, where in _by_reason(found).items()]


def counted(reasons: Iterable[str | None]) -> dict[str, int]:
    """Return how often each reason occurs, the most frequent first.

    Reasons that differ only in their numbers count as one, and the first of them is shown as an example.
    """
    kinds: dict[str, Counter[str]] = {}
    for reason in reasons:
        text = reason or NO_REASON
        kinds.setdefault(re.sub(r"[\d.]*\d", "#", text), Counter())[text] += 1
    ordered = sorted(kinds.values(), key=lambda kind: -kind.total())
    return {"for example " * (len(kind) > 1) + next(iter(kind)): kind.total() for kind in ordered}


@dataclass(frozen=True)
class Remark:
    """The points of a provider that have no time for the same reason."""

    provider: str
    status: str
    reason: str
    count: int

    def __str__(self) -> str:
        points = plural(self.count, "point")
        if self.status == "verified":
            return f"{self.provider}: {points} verified under the interpreter, not timed"
        reason = textwrap.shorten(self.reason, MOST_CHARACTERS, placeholder=" …")
        return f"{self.provider}: {points} {FATE[self.status]}: {reason}"


def remarks(rows: Iterable[Row]) -> list[Remark]:
    """Return why rows have no time; reasons that differ only in their numbers count as one."""
    kinds: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["status"] != "ok":
            kind = re.sub(r"\d+", "#", row["error"] or "")
            kinds.setdefault((row["provider"], row["status"], kind), []).append(row)
    found = []
    for (provider, status, _), some in sorted(kinds.items()):
        (reason,) = counted(row["error"] for row in some)
        found.append(Remark(provider, status, reason, len(some)))
    return found
