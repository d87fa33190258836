"""Replays of the tuned tables' choices against ledgers, without measuring.

The tables show the regret of the choices between tuned problems, the errors of predicted times, and the
regret of the choices by another GPU's table. ``ops.chooser.Chooser`` chooses, as for callers, from a table
that never has the problem itself: its shape is left out in every dtype.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kernel_pipeline import problems
from kernel_pipeline.contract import Kernel
from kernel_pipeline.loading import Loaded
from kernel_pipeline.ops import prediction, rule
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.ops.chooser import Chooser
from kernel_pipeline.ops.table import Table
from kernel_pipeline.ops.tuned_problems import completed
from kernel_pipeline.records.base import Values

from ..verdicts import regret
from ..verdicts.regret import Times, quantile
from .numbers import percent
from .tables import TextTable

SIDES = {True: "within", False: "beyond", None: "both"}
"""The names of the sides of the L2 cache by ``within_l2``; None stands for both."""

SLOWER = 0.03
"""A choice loses to the baseline if it takes longer by more than this share."""

LOST = f"{SLOWER:.0%} slower"
"""The column with the number of problems at which a choice loses to the baseline, of those with its time."""


Chosen = tuple[Times, str]
"""A problem, and the label of the configuration that is called there."""


@dataclass(frozen=True)
class LedgerTimes:
    """A kernel's times on one GPU, and the table that is made of them."""

    loaded: Loaded
    table: Table
    times: Sequence[Times]

    @property
    def title(self) -> str:
        """The names of the kernel and of the GPU."""
        return f"{self.loaded.name} on {self.table.gpu}"

    @cached_property
    def choosers(self) -> list[Replayed]:
        """The chooser of each problem, by the table without its shape."""
        return [Replayed(self, one, self.without(one)) for one in self.times]

    def without(self, one: Times) -> Table:
        """Return the table without a problem's shape. The regrets of its regions stay those of all problems:
        to leave out each shape and then each other one takes minutes."""
        kernel, here = self.loaded.kernel, rule.numbers(one.tuned.problem)
        tuned = self.table.kernels[self.loaded.name]
        kept = [each for each in tuned.problems if rule.numbers(completed(kernel, each.problem)) != here]
        return replace(self.table, kernels={self.loaded.name: replace(tuned, problems=kept)})


class Replayed(Chooser):
    """Makes the choice that callers get at a problem of a ledger, by the table ``found``. A configuration
    without a time at the problem is skipped, as if it did not fit. Without ``has_margin`` a choice is not
    compared with the baseline."""

    def __init__(
        self, ledger: LedgerTimes, times: Times, found: Table, how: str | None = None, has_margin: bool = True
    ) -> None:
        problem = problems.make(ledger.loaded.kernel.problem, Values(times.tuned.problem))
        super().__init__(found, ledger.loaded, problem, ledger.table.properties, how=how, warns=False)
        self.times = times
        self.has_margin = has_margin

    def against(self, label: str) -> str | None:
        """Return the reason why a configuration is skipped, as a sentence, or None."""
        return None if label in self.times.us else f"{label} has no time at this problem."

    def is_called(self, label: str, margin: float, slowest: float) -> bool:
        """Whether a configuration is called in place of the baseline."""
        return not self.has_margin or super().is_called(label, margin, slowest)

    @cached_property
    def called(self) -> str | None:
        """The label of the configuration that callers get; None if it has no time."""
        return self.timed(self.choose())

    def timed(self, choice: Choice | None) -> str | None:
        """Return the label of a choice, or of the baseline for None; None if it has no time."""
        if choice is None or choice.provider == self.kernel.baseline:
            return _baseline(self.kernel, self.times)
        return self.label_of(choice)


def regretted(ledger: LedgerTimes) -> TextTable:
    """Return the table of regrets: how much longer each way of choosing takes than the ledger's fastest, and
    at how many problems it loses to the baseline.

    The ways are the configuration that callers get, the same without the margin over the baseline, the rule
    between tuned problems, the rule where it is trusted, the best of the nearest problem alone, the safest
    default that fits, and the baseline. Rows are by side of the L2 cache.
    """
    rows = []
    without_margin = [Replayed(ledger, one.times, one.table, has_margin=False) for one in ledger.choosers]
    for side, name in SIDES.items():
        here, bare = (
            [one for one in some if side in (None, one.within_l2)]
            for some in (ledger.choosers, without_margin)
        )
        times = [one.times for one in here]
        defaults = regret.safest(times, ledger.loaded.kernel.baseline)
        ways: dict[str, list[str | None]] = {
            "called configuration": [one.called for one in here],
            "without the margin": [one.called for one in bare],
            "rule": [_label(one.picked) for one in here],
            "rule where it is trusted": [_label(one.trusted) for one in here],
            "nearest alone": [_label(one.picked_by(1)) for one in here],
            "best default": [next((label for label in defaults if label in one.us), None) for one in times],
            "baseline": [one.timed(None) for one in here],
        }
        for way, labels in ways.items():
            those = [(one, label) for one, label in zip(times, labels, strict=True) if label is not None]
            if those:
                rows.append([name, way, str(len(those)), *_shares(those)])
    columns = ("L2 cache", "way", "problems", "median", "90th percentile", "largest", LOST)
    return TextTable(f"{ledger.title}: regret", columns, rows, numbers=columns[2:])


def _label(pick: rule.Pick | None) -> str | None:
    return None if pick is None else pick.label


def _baseline(kernel: Kernel, one: Times) -> str | None:
    """Return the label of the fastest measured configuration of the baseline; None if there is none."""
    labels = [label for label in one.us if label.partition(" ")[0] == kernel.baseline]
    return min(labels, key=lambda label: one.us[label], default=None)


def _shares(those: Sequence[Chosen]) -> list[str]:
    """Return the median, 90th percentile and maximum of the regret, and the share of losses."""
    regrets = [one.regret(label) for one, label in those]
    return [*(percent(quantile(regrets, share)) for share in (0.5, 0.9, 1.0)), _lost(those)]


def _lost(those: Sequence[Chosen]) -> str:
    """Return at how many problems with a time of the baseline the choice loses to it."""
    pairs = [(one.us[label], one.tuned.baseline_us) for one, label in those]
    compared = [us / of_baseline for us, of_baseline in pairs if of_baseline is not None]
    return f"{sum(ratio > 1 + SLOWER for ratio in compared)} of {len(compared)}" if compared else ""


def predicted(ledgers: Sequence[LedgerTimes]) -> TextTable:
    """Return the table of the errors of predictions by the rule's neighbours: of the time of the rule's
    choice, of the baseline's time, and of the ratio of both. An error is the larger of both times over the
    smaller, less 1."""
    found: dict[str, list[list[float]]] = {}
    for ledger in ledgers:
        for made in ledger.choosers:
            if made.picked is None:
                continue
            for row in (ledger.title, "all"):
                errors = found.setdefault(row, [[], [], []])
                for kept, error in zip(errors, _errors(made, made.picked.label), strict=True):
                    if error is not None:
                        kept.append(error)
    rows = [
        [name, str(len(errors[0])), *(cell for each in errors for cell in _middle(each))]
        for name, errors in sorted(found.items(), key=lambda each: each[0] == "all")
    ]
    columns = ("ledger", "problems", "time p50", "p90", "baseline p50", "p90", "ratio p50", "p90")
    return TextTable("Errors of predictions", columns, rows, numbers=columns[1:], strong=[len(rows) - 1])


def _middle(shares: Sequence[float]) -> list[str]:
    """Return the median and the 90th percentile; empty texts of no values."""
    return [percent(quantile(shares, share)) if shares else "" for share in (0.5, 0.9)]


def _errors(made: Replayed, label: str) -> tuple[float | None, float | None, float | None]:
    us, measured = made.predicted_us(label), made.times.us[label]
    if us is None:
        return None, None, None
    ratio = made.by_steps(label) if made.predicted else prediction.speedup(made.around, label)
    of_baseline = made.times.tuned.baseline_us
    if ratio is None or of_baseline is None:
        return _error(us, measured), None, None
    return _error(us, measured), _error(us * ratio, of_baseline), _error(ratio, of_baseline / measured)


def _error(one: float, other: float) -> float:
    return max(one / other, other / one) - 1


def by_siblings(ledgers: Sequence[LedgerTimes]) -> Iterator[TextTable]:
    """Yield a table for each pair of GPUs of the same compute capability: the choices on one of them by the
    other's times, first by all of these and then with the problem's shape left out, beside the
    baseline."""
    gpus = dict.fromkeys((one.table.gpu, one.table.compute_capability) for one in ledgers)
    for used, capability in gpus:
        for other, its in gpus:
            if used != other and capability is not None and capability == its:
                table = _by_sibling(ledgers, used, other)
                if table.rows:
                    yield table


def _by_sibling(ledgers: Sequence[LedgerTimes], used: str, other: str) -> TextTable:
    theirs = {one.loaded.name: one for one in ledgers if one.table.gpu == other}
    found: dict[str, list[list[Chosen]]] = {}
    for ledger in ledgers:
        if ledger.table.gpu == used and ledger.loaded.name in theirs:
            its, kernel = theirs[ledger.loaded.name], ledger.loaded.kernel
            baseline = [(one, label) for one in ledger.times if (label := _baseline(kernel, one))]
            found[ledger.loaded.name] = [
                list(_sibling_choices(ledger, its, is_left_out=False)),
                list(_sibling_choices(ledger, its, is_left_out=True)),
                baseline,
            ]
    if found:
        found["all"] = [[one for each in ways for one in each] for ways in zip(*found.values(), strict=True)]
    rows = []
    for name, ways in found.items():
        by_all, left_out, baseline = ways
        regrets = [[one.regret(label) for one, label in those] for those in (by_all, left_out, baseline)]
        lost = [_lost(by_all), _lost(left_out)]
        rows.append([name, str(len(by_all)), *lost, *(cell for each in regrets for cell in _middle(each))])
    columns = (
        *("kernel", "problems", LOST, "left out", "regret p50", "p90"),
        *("left out p50", "p90", "baseline p50", "p90"),
    )
    title = f"Choices on {used} by the times of {other}"
    return TextTable(title, columns, rows, numbers=columns[1:], strong=[len(rows) - 1] if rows else ())


def _sibling_choices(ledger: LedgerTimes, its: LedgerTimes, is_left_out: bool) -> Iterator[Chosen]:
    for one in ledger.times:
        made = Replayed(ledger, one, its.without(one) if is_left_out else its.table, "sibling")
        if (label := made.timed(made.choose_elsewhere(""))) is not None:
            yield one, label
