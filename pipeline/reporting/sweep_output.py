"""What a sweep says at its end: its table, what was left out and why, what failed, what is old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kernel_pipeline.records.measurement import Measurement, Outcome
from kernel_pipeline.records.point import Point
from pipeline.execution.identity import Identity
from pipeline.execution.old_rows import OldRows, reasons
from pipeline.points import notation
from pipeline.points.catalog import Entry
from pipeline.points.plan import Plan
from pipeline.points.searches import Searches
from pipeline.reporting.numbers import number
from pipeline.reporting.sweep_table import FATE, disturbances, show_table
from pipeline.store import provenance, retry


@dataclass(frozen=True)
class SweepOutput:
    """A sweep over one kernel's points that has ended in whatever way; ``rows`` are what the ledger holds of
    them, those of ``run`` are its own."""

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

    def show(self, console: Console) -> None:
        """Print all of it."""
        baselines = {self.entry.name: self.entry.loaded.kernel.baseline}
        show_table(console, self.rows, baselines, str(self.ledger))
        doubts = disturbances(row for row in self.rows if row.origin.run == self.run)
        searched = [] if not self.searches else [_searched(self.searches)]
        for line in (*self.plan.refusals(), self.summary_line(), *searched, *doubts, *self.failures()):
            console.print(line, highlight=False, soft_wrap=True)

    def summary_line(self) -> str:
        """How much was measured, and how much of what was asked for is there."""
        noise = "" if self.noise_floor is None else f"; noise floor {self.noise_floor:.1%}"
        return (
            f"{notation.points(self.measured)} measured in {self.seconds:.1f} s{noise}. "
            f"{len(self.current())} of {len(self.plan.points)} are in {self.ledger}.{self._staleness()}"
        )

    def current(self) -> list[Measurement]:
        """The rows that are of what would be measured now."""
        return [row for row in self.rows if row.key == self.identity.key(row.point)]

    def failures(self) -> list[str]:
        """How many failures the next run tries again, and how many only when told to."""
        failed = [row for row in self.current() if retry.has_failed(row)]
        due = [row for row in failed if retry.is_due(row, "passing")]
        lines = []
        if due:
            statuses = Counter(row.outcome.status for row in due)
            counts = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
            lines.append(
                f"{notation.points(len(due))} failed in a way that may pass ({counts}): the next run tries "
                f"{'them' if len(due) > 1 else 'it'} again, {retry.MOST_ATTEMPTS} runs in all."
            )
        if len(failed) > len(due):
            lines.append(
                f"{notation.points(len(failed) - len(due))} failed and will not be tried again, "
                "unless you write retry=failed."
            )
        return lines

    def _staleness(self) -> str:
        """How many rows are old, of a sweep that was stopped before it came to them, and by what."""
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
    """That there is nothing to measure, and what to write to measure all the same."""
    if searches and searches.budget.trials is not None:
        return (
            f"Nothing to measure: {ledger} holds {searches.budget.trials} trials of each search. "
            "Write a larger trials= for more of them, or remeasure=true to measure again."
        )
    return f"Nothing to measure: {ledger} holds every point. Write remeasure=true to measure again."


def best_so_far(point: Point, us: float) -> str:
    """The fastest point of a search, as progress shows it."""
    problem = " ".join(filter(None, [notation.extent(point), notation.words(point)]))
    return f"best so far of {problem}: {number(us)} us, {notation.label(point)}"


def _searched(searches: Searches) -> str:
    """How many trials there were, and among how many configurations."""
    count = len(searches)
    return (
        f"search={searches.budget.sampler}: {count} search{'es' * (count != 1)} among {searches.size} "
        f"configurations. Trials: {searches.known} known from the ledger, {searches.measured} measured."
    )


Found = tuple[Entry, Point, Outcome]
"""What a point of a kernel gave."""


def failures_of_own(found: Iterable[Found], allowed: Sequence[str]) -> str | None:
    """A sentence on points of own providers that failed in any way but those that are allowed; None if there
    are none."""
    failed = Counter(
        outcome.status
        for entry, point, outcome in found
        if outcome.error is not None
        and outcome.status != "not_judged"
        and entry.loaded.kernel.provider(point.provider).is_own
        and not {outcome.status, "all"} & set(allowed)
    )
    if not failed:
        return None
    counts = ", ".join(f"{count} {status}" for status, count in sorted(failed.items()))
    return (
        f"{notation.points(failed.total())} of own providers failed ({counts}), so the exit code is 1; with "
        f"allow={','.join(sorted(failed))} it is 0."
    )


def in_words(outcome: Outcome) -> str:
    """An outcome that has no time, in words."""
    return "right" if outcome.error is None else f"{FATE[outcome.status]}: {outcome.error}"
