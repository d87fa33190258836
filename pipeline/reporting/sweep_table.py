"""The table that a sweep ends with: the best configuration of each provider on one GPU.

Legible without colour and in a file: no number or name is cut off, and every row names itself in full.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from kernel_pipeline.records.measurement import Measurement
from pipeline.reporting.headlines import NO_REASON, is_bound, is_distrusted
from pipeline.reporting.numbers import RATES, microseconds, number, percent, print_wide, speedup
from pipeline.reporting.tables import TextTable

MAX_ROWS = 60
"""Past this, a table shows only the best provider at each problem."""

MAX_REMARKS = 12
"""Past this, the kinds of points without a time are counted and not listed."""

MOST_CHARACTERS = 200
"""Of a reason: some compilers' messages go on for pages. The ledger holds all of it."""

WAS = "was us"
"""The column of times before an edit."""

TIE = "~"
TIE_NOTE = f"{TIE} no difference: it is within the noise floor or a confidence interval."

INCOMPARABLE = "?"
"""Marks a time of which no ratio is made."""

Row = Mapping[Any, Any]
"""A row of a frame, by its columns."""

FATE = {
    "not_judged": "not judged",
    "incorrect": "incorrect",
    "compile_error": "failed to compile",
    "runtime_error": "failed at run time",
    "out_of_memory": "ran out of memory",
    "timeout": "took too long",
}
"""What a status says of points, in words."""


@dataclass(frozen=True)
class Remark:
    """Points of a provider without a time, for the same reason but for the numbers in it."""

    kernels: tuple[str, ...]
    provider: str
    status: str
    reason: str | None
    varies: bool
    count: int

    def __str__(self) -> str:
        points = f"{self.count} point{'s' * (self.count != 1)}"
        if self.status == "verified":
            return f"{self.provider}: {points} verified under the interpreter, not timed"
        example = "for example " if self.varies else ""
        reason = textwrap.shorten(self.reason or "", MOST_CHARACTERS, placeholder=" …")
        return f"{self.provider}: {points} {FATE[self.status]}: {example}{reason}"


def incomparable_notes(rows: Iterable[Row]) -> list[str]:
    """The meaning of the mark behind a provider: the problems at which its time has no ratio, and why."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if isinstance(row["incomparable"], str):
            problem = " ".join(filter(None, (row["kernel"], row["extent"], row["words"])))
            found.setdefault(row["incomparable"], {})[problem] = None
    return [
        f"{INCOMPARABLE} no ratio at {', '.join(problems)}: {reason}." for reason, problems in found.items()
    ]


def remarks(rows: Iterable[Row]) -> list[Remark]:
    """Why the rows that are not ok have no time; reasons that differ in their numbers alone count as one."""
    kinds: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["status"] != "ok":
            kind = re.sub(r"\d+", "#", row["error"] or "")
            kinds.setdefault((row["provider"], row["status"], kind), []).append(row)
    found = []
    for (provider, status, _), of_kind in sorted(kinds.items()):
        reasons = list(dict.fromkeys(row["error"] for row in of_kind if row["error"]))
        found.append(
            Remark(
                kernels=tuple(sorted({row["kernel"] for row in of_kind})),
                provider=provider,
                status=status,
                reason=reasons[0] if reasons else None,
                varies=len(reasons) > 1,
                count=len(of_kind),
            )
        )
    return found


def show_table(
    console: Console, measurements: Iterable[Measurement], baselines: Mapping[str, str], where: str
) -> None:
    """Print the table of one GPU's measurements, and below it what has no time and why.

    baselines:
        The provider that a kernel's others are compared with, by kernel.
    where:
        Where all rows can be found, for a reader to whom only the best are shown.
    """
    # pandas takes half a second to import, which a sweep does not spend at its start.
    from pipeline.reporting import ranking
    from pipeline.reporting.frames import frame

    rows = frame(measurements)
    if rows.empty:
        console.print("Nothing was measured.")
        return
    best = ranking.against_baseline(ranking.best_configurations(rows), baselines)
    best = best.sort_values(["kernel", "rank", "median_us", "provider"])
    count, notes = len(best), []
    if count > MAX_ROWS:
        best = ranking.best_providers(best)
        notes.append(f"Only the best provider at each problem is shown; all {count} rows: {where}.")
    shown: list[Any] = best.to_dict("records")
    if shown:
        table_of(shown, baselines).print(console)
    else:
        notes.append("No point was timed.")
    if any(row["tied"] for row in shown):
        notes.append(TIE_NOTE)
    every: list[Any] = rows.to_dict("records")
    notes += [*_edit_notes(shown), *_baseline_notes(shown, baselines), *_invalid_notes(shown)]
    notes += [*incomparable_notes(shown), *_remark_notes(every, where)]
    if notes:
        print_wide(console, Text("\n".join(notes)))


def time_cell(row: Row) -> str:
    """A time with its marks."""
    mark = "!" * is_distrusted(row) + INCOMPARABLE * isinstance(row["incomparable"], str)
    return microseconds(row["median_us"], is_bound(row)) + mark


def ratio_cell(row: Row) -> str:
    """The baseline's time over a row's, with the marks of no difference and of one not to be trusted."""
    text = speedup(row["speedup"])
    return text + TIE * bool(row["tied"]) + "!" * bool(text and row["doubt"])


def table_of(rows: Sequence[Row], baselines: Mapping[str, str]) -> TextTable:
    """The best rows: the first of each problem is bold, and a line stands above each kernel and dtype."""
    rates = list(dict.fromkeys(row["headline"] for row in rows))
    was_edited = any(row["earlier_us"] == row["earlier_us"] for row in rows)  # not NaN
    names = {baselines.get(row["kernel"], "baseline") for row in rows}
    ratio = f"x {names.pop()}" if len(names) == 1 else "x baseline"
    edited = [WAS] if was_edited else []
    numbers = ["us", *edited, *(RATES[name] for name in rates), "of ceiling", ratio]
    places = [(row["kernel"], row["words"], row["extent"]) for row in rows]
    return TextTable(
        title=rows[0]["gpu"],
        columns=["kernel", "problem", "provider", "dtype", *numbers],
        rows=[
            [
                row["kernel"],
                row["extent"],
                row["label"] + " (baseline)" * (row["provider"] == baselines.get(row["kernel"])),
                row["words"],
                time_cell(row),
                *([number(row["earlier_us"])] if was_edited else ()),
                *(number(row[name]) if row["headline"] == name else "" for name in rates),
                percent(row["ceiling_fraction"]),
                ratio_cell(row),
            ]
            for row in rows
        ],
        numbers=numbers,
        strong=[i for i, place in enumerate(places) if i == 0 or place != places[i - 1]],
        breaks=[i for i, place in enumerate(places) if i and place[:2] != places[i - 1][:2]],
    )


def disturbances(rows: Iterable[Measurement]) -> list[str]:
    """What share of the times is not to be trusted, and why; and how many were taken beside others."""
    states = [row.outcome.state for row in rows if row.outcome.state is not None]
    times = f"{len(states)} time{'s' * (len(states) != 1)}"
    found = doubts_by_reason(state.invalid_reason for state in states if not state.valid)
    lines = []
    if count := sum(found.values()):
        why = "; ".join(f"{times} because {reason}" for reason, times in found.items())
        share = f"{count} of {times} ({count / len(states):.0%})"
        is_marked = "is" if count == 1 else "are"
        lines.append(f"{share} {is_marked} not to be trusted: {why}. remeasure=true measures again.")
    if beside := sum(state.neighbours is not None for state in states):
        lines.append(f"{beside} of {times} were taken while other processes computed on the GPU.")
    return lines


def doubts_by_reason(some: Iterable[str | None]) -> dict[str, int]:
    """Why times are not to be trusted, and of how many, the most frequent first. Reasons that differ in their
    numbers alone count as one, of which there is an example."""
    kinds: dict[str, list[str]] = {}
    for reason in some:
        text = reason or NO_REASON
        kinds.setdefault(re.sub(r"[\d.]*\d", "#", text), []).append(text)
    ordered = sorted(kinds.values(), key=len, reverse=True)
    return {
        ("for example " if len(set(of_kind)) > 1 else "") + of_kind[0]: len(of_kind) for of_kind in ordered
    }


def _edit_notes(rows: Sequence[Row]) -> list[str]:
    """What the times before an edit are worth."""
    return [
        f"{WAS}: before the source was edited, and not in the same run; "
        f"python -m pipeline.compare kernel={kernel} a=HEAD measures both side by side."
        for kernel in dict.fromkeys(row["kernel"] for row in rows if row["earlier_us"] == row["earlier_us"])
    ]


def _baseline_notes(rows: Sequence[Row], baselines: Mapping[str, str]) -> list[str]:
    """Which baseline is whose, where the column's header can't say it."""
    of: dict[str, list[str]] = {}
    for kernel in dict.fromkeys(row["kernel"] for row in rows):
        of.setdefault(baselines.get(kernel, "none"), []).append(kernel)
    if len(of) < 2:
        return []
    return [
        "Baselines: " + "; ".join(f"{name} for {', '.join(kernels)}" for name, kernels in of.items()) + "."
    ]


def _invalid_notes(rows: Sequence[Row]) -> list[str]:
    """The meaning of the marks of times and ratios, once a reason."""
    found = doubts_by_reason(row["doubt"] for row in rows if row["doubt"])
    return [
        f"! {count} row{'s' * (count != 1)} not to be trusted: {reason}" for reason, count in found.items()
    ]


def _remark_notes(rows: Sequence[Row], where: str) -> list[str]:
    """The remarks as lines, the first of many."""
    found = remarks(rows)
    several = len({row["kernel"] for row in rows}) > 1
    lines = [f"{', '.join(r.kernels)}: {r}" if several else str(r) for r in found[:MAX_REMARKS]]
    if len(found) > MAX_REMARKS:
        more = found[MAX_REMARKS:]
        count = sum(remark.count for remark in more)
        lines.append(f"and {count} more points without a time, for {len(more)} other reasons: {where}.")
    return lines
