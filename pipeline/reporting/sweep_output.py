"""The end of a sweep's output: the table of the best configurations, then failures, omissions and old rows.

The table is legible without colour and in a file: no number or name is cut off, and every row repeats its
kernel and problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kernel_pipeline.records.measurement import Measurement, Outcome
from kernel_pipeline.records.point import Point

from .. import as_typed
from ..execution.worker_pool import DeviceTime
from ..keys.identity import Identity
from ..keys.old_rows import OldRows, reasons
from ..points import notation
from ..points.catalog import Entry
from ..points.notation import plural
from ..points.plan import Plan
from ..points.searches import Searches
from ..store import provenance, retry
from ..store.commit import git
from .cells import FATE, TIE_NOTE, Row, counted, incomparable_notes, ratio_cell, remarks, time_cell
from .numbers import RATES, number, percent, print_wide
from .tables import TextTable

MAX_ROWS = 60
"""A table that would have more rows shows only the best provider at each problem."""

MAX_REMARKS = 12
"""The number of reasons for missing times that are listed; further reasons are only counted."""

WAS = "was us"
"""The heading of the times before the source was edited."""

BESIDE = {"prepare_ms": "prepare ms", "peak_mib": "peak MiB", "host_us": "host us"}
"""Headings of readings that only some kernels declare, by field: the time to prepare weights, the memory of
a call beyond its inputs and outputs, and its time on the host."""


@dataclass(frozen=True)
class SweepOutput:
    """A sweep over one kernel's points that ended, completely or not.

    ``rows`` are the ledger's rows of these points; the sweep itself measured the rows of ``run``. ``kernel``
    is the kernel as the command line names it.
    """

    kernel: str
    entry: Entry
    plan: Plan
    identity: Identity
    ledger: Path
    rows: Sequence[Measurement]
    measured: int
    seconds: float
    noise_floor: float | None
    run: str
    searches: Searches | None = None
    device_times: Mapping[str, DeviceTime] = field(default_factory=dict)

    def show(self, console: Console) -> None:
        """Print the table and the lines below it."""
        loaded = self.entry.loaded
        has_commit = not loaded.is_outside or git(loaded.folder, "rev-parse", "HEAD") is not None
        beside = as_typed("compare", f"kernel={self.kernel}", "a=HEAD") if has_commit else None
        show_table(console, self.rows, loaded.kernel.baseline, str(self.ledger), beside)
        doubts = disturbances(row for row in self.rows if row.origin.run == self.run)
        searched = [] if not self.searches else [_searched(self.searches)]
        ends = (self.summary_line(), *self.shares(), *searched, *doubts, *self.failures())
        for line in (*self.plan.refusals(), *ends):
            console.print(line, highlight=False, soft_wrap=True)

    def summary_line(self) -> str:
        """Return the line with the number of measured points and of requested points in the ledger."""
        noise = "" if self.noise_floor is None else f"; noise floor {self.noise_floor:.1%}"
        return (
            f"{notation.points(self.measured)} measured in {self.seconds:.1f} s{noise}. "
            f"{len(self.current())} of {len(self.plan.points)} are in {self.ledger}.{self._staleness()}"
        )

    def shares(self) -> list[str]:
        """Return how each of several devices spent the sweep's time; no line for one device, whose last point
        is the sweep's."""
        if len(self.device_times) < 2:
            return []
        return [
            f"{name}: {notation.points(time.points)}, {percent(time.measuring_s / self.seconds)} of the time "
            f"measuring, {percent(time.compiling_s / self.seconds)} waiting for compilers."
            for name, time in self.device_times.items()
        ]

    def current(self) -> list[Measurement]:
        """Return the fresh rows."""
        return [row for row in self.rows if row.key == self.identity.key(row.point)]

    def failures(self) -> list[str]:
        """Return how many failures the next run retries, and how many only with ``retry=failed``."""
        failed = [row for row in self.current() if retry.has_failed(row)]
        due = [row for row in failed if retry.is_due(row, "passing")]
        lines = []
        if due:
            lines.append(
                f"{notation.points(len(due))} failed in a way that may pass "
                f"({_counts(row.outcome.status for row in due)}): the next run tries "
                f"{'them' if len(due) > 1 else 'it'} again, {retry.MOST_ATTEMPTS} runs in all."
            )
        if len(failed) > len(due):
            lines.append(
                f"{notation.points(len(failed) - len(due))} failed and will not be tried again, "
                "unless you write retry=failed."
            )
        return lines

    def _staleness(self) -> str:
        """Return how many rows are old and why: a stopped sweep did not reach them."""
        current = {row.point for row in self.current()}
        stale = [row for row in self.rows if row.point not in current]
        if not stale:
            return ""
        runs = provenance.read(provenance.beside(self.ledger))
        old = OldRows()
        for row in stale:
            old.add(reasons(row, self.identity, runs))
        return f" {old.said('more row')}. Run the same command to measure them."


def nothing_to_measure(ledger: Path, searches: Searches | None) -> str:
    """Return the sentence that nothing is left to measure, and the option that measures again."""
    if searches and searches.budget.trials is not None:
        return (
            f"Nothing to measure: {ledger} holds {searches.budget.trials} trials of each search. "
            "Write a larger trials= for more of them, or remeasure=true to measure again."
        )
    return f"Nothing to measure: {ledger} holds every point. Write remeasure=true to measure again."


def best_so_far(point: Point, us: float) -> str:
    """Return the fastest point of a search as a line for the progress bar."""
    problem = " ".join(filter(None, [notation.extent(point), notation.words(point)]))
    return f"best so far of {problem}: {number(us)} us, {notation.label(point)}"


def _searched(searches: Searches) -> str:
    """Return the number of searches, configurations and trials."""
    count = len(searches)
    return (
        f"search={searches.budget.sampler}: {count} search{'es' * (count != 1)} among {searches.size} "
        f"configurations. Trials: {searches.known} known from the ledger, {searches.measured} measured."
    )


Found = tuple[Entry, Point, Outcome]
"""A point of a kernel and its outcome."""


def failures_of_own(found: Iterable[Found], allowed: Sequence[str]) -> str | None:
    """Return a sentence on the failures of own providers that ``allow=`` does not list, or None."""
    failed = [
        outcome.status
        for entry, point, outcome in found
        if outcome.error is not None
        and outcome.status != "not_judged"
        and entry.loaded.kernel.provider(point.provider).is_own
        and not {outcome.status, "all"} & set(allowed)
    ]
    if not failed:
        return None
    return (
        f"{notation.points(len(failed))} of own providers failed ({_counts(failed)}), so the exit code is 1; "
        f"with allow={','.join(sorted(set(failed)))} it is 0."
    )


def _counts(statuses: Iterable[str]) -> str:
    """Return the number of points by status: ``2 incorrect, 1 timeout``."""
    return ", ".join(f"{count} {status}" for status, count in sorted(Counter(statuses).items()))


def in_words(outcome: Outcome) -> str:
    """Return an outcome without a time in words."""
    return "right" if outcome.error is None else f"{FATE[outcome.status]}: {outcome.error}"


def show_table(
    console: Console,
    measurements: Iterable[Measurement],
    baseline: str,
    where: str,
    beside: str | None = None,
) -> None:
    """Print the table of one kernel's measurements on one GPU, with notes on marks and missing times.

    ``where`` is the file that has all rows; it is named if the table leaves some out. ``beside`` is the
    command that measures the source before and after an edit side by side, None if there is no commit.
    """
    # Importing pandas takes half a second, which would delay the start of a sweep.
    from . import frames

    rows = frames.frame(measurements)
    if rows.empty:
        console.print("Nothing was measured.")
        return
    best = frames.against_baseline(
        frames.best_configurations(rows), dict.fromkeys(rows["kernel"].unique(), baseline)
    )
    best = best.sort_values(["kernel", "rank", "median_us", "provider"])
    count, notes = len(best), []
    if count > MAX_ROWS:
        best = frames.best_providers(best)
        notes.append(f"Only the best provider at each problem is shown; all {count} rows: {where}.")
    shown: list[Any] = best.to_dict("records")
    if shown:
        table_of(shown, baseline).print(console)
    else:
        notes.append("No point was timed.")
    notes += [TIE_NOTE] * any(row["tied"] for row in shown)
    if any(row["earlier_us"] == row["earlier_us"] for row in shown):  # not NaN
        both = f"; {beside} measures both side by side" if beside else ""
        notes.append(f"{WAS}: before the source was edited, and not in the same run{both}.")
    for reason, times in counted(row["doubt"] for row in shown if row["doubt"]).items():
        notes.append(f"! {plural(times, 'row')} not to be trusted: {reason}")
    notes += [*incomparable_notes(shown), *_remark_notes(rows.to_dict("records"), where)]
    if notes:
        print_wide(console, Text("\n".join(notes)))


def table_of(rows: Sequence[Row], baseline: str) -> TextTable:
    """Return the table of the best rows: each problem's first row is bold, a line separates the dtypes."""
    rates = list(dict.fromkeys(row["headline"] for row in rows))
    was_edited = any(row["earlier_us"] == row["earlier_us"] for row in rows)  # not NaN
    beside = [name for name in BESIDE if any(row[name] == row[name] for row in rows)]
    numbers = ["us", *[WAS] * was_edited, *(RATES[name] for name in rates), "of ceiling", f"x {baseline}"]
    numbers += [BESIDE[name] for name in beside]
    places = [(row["words"], row["extent"]) for row in rows]
    return TextTable(
        title=rows[0]["gpu"],
        columns=["kernel", "problem", "provider", "dtype", *numbers],
        rows=[
            [
                row["kernel"],
                row["extent"],
                row["label"] + " (baseline)" * (row["provider"] == baseline),
                row["words"],
                time_cell(row),
                *([number(row["earlier_us"])] if was_edited else ()),
                *(number(row[name]) if row["headline"] == name else "" for name in rates),
                percent(row["ceiling_fraction"]),
                ratio_cell(row),
                *(number(row[name]) for name in beside),
            ]
            for row in rows
        ],
        numbers=numbers,
        strong=[i for i, place in enumerate(places) if i == 0 or place != places[i - 1]],
        breaks=[i for i, place in enumerate(places) if i and place[0] != places[i - 1][0]],
    )


def disturbances(rows: Iterable[Measurement]) -> list[str]:
    """Return the share of distrusted times and why, the number taken beside other GPU processes, and the
    number over a large ring."""
    outcomes = [row.outcome for row in rows]
    states = [outcome.state for outcome in outcomes if outcome.state is not None]
    times = plural(len(states), "time")
    found = counted(state.invalid_reason for state in states if not state.valid)
    lines = []
    if count := sum(found.values()):
        why = "; ".join(f"{times} because {reason}" for reason, times in found.items())
        share = f"{count} of {times} ({count / len(states):.0%})"
        is_marked = "is" if count == 1 else "are"
        lines.append(f"{share} {is_marked} not to be trusted: {why}. remeasure=true measures again.")
    if beside := sum(state.neighbours is not None for state in states):
        lines.append(f"{beside} of {times} were taken while other processes computed on the GPU.")
    if large := sum(outcome.timing is not None and outcome.timing.large_ring for outcome in outcomes):
        were = "was" if large == 1 else "were"
        lines.append(
            f"{large} of {times} {were} taken over a larger ring of inputs than usual: the cache keeps part "
            "of the usual ring, and the audit refused the time (docs/trust.md)."
        )
    return lines


def _remark_notes(rows: Iterable[Mapping[Any, Any]], where: str) -> list[str]:
    """Return the reasons why points have no time; past ``MAX_REMARKS`` only their number."""
    found = remarks(rows)
    lines = [str(one) for one in found[:MAX_REMARKS]]
    if more := found[MAX_REMARKS:]:
        count = sum(one.count for one in more)
        lines.append(f"and {count} more points without a time, for {len(more)} other reasons: {where}.")
    return lines
