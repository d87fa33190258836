"""Replays of the tuned tables' rule against ledgers, without measuring.

The tables show the regret of the rule between tuned problems, the errors of predicted times, and the regret
of the choices by another GPU's table. The rule never sees the times of the problem itself on its GPU: the
shape is left out in every dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernel_pipeline import problems
from kernel_pipeline.contract import Kernel
from kernel_pipeline.ops import prediction, rule
from kernel_pipeline.ops.growth import Growth, is_safer
from kernel_pipeline.ops.table import FEWEST
from kernel_pipeline.ops.tuned_problems import takes_inputs, words_text
from kernel_pipeline.records.base import Values

from ..verdicts import regret
from ..verdicts.regret import Left, Times, quantile
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
    """A kernel's times on one GPU, whose slug is ``gpu``."""

    name: str
    gpu: str
    times: Sequence[Times]
    growth: Growth

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.growth.kernel

    @property
    def capability(self) -> tuple[int, int] | None:
        """The GPU's compute capability; None for a CPU."""
        return None if self.growth.gpu is None else self.growth.gpu.capability


def regretted(ledger: LedgerTimes) -> TextTable:
    """Return the table of regrets: how much longer each way of choosing takes than the ledger's fastest, and
    at how many problems it loses to the baseline.

    The ways are the configuration that callers get, the same without the margin over the baseline, the rule
    between tuned problems, the rule where it is trusted, the best of the nearest problem alone, the safest
    default that fits, and the baseline. Rows are by side of the L2 cache.
    """
    kernel, times = ledger.kernel, ledger.times
    rows = []
    by_rule, by_nearest = (regret.leave_out(times, ledger.growth, count) for count in (rule.NEIGHBOURS, 1))
    for side, name in SIDES.items():
        here = [one for one in times if side in (None, one.tuned.within_l2)]
        chosen, nearest = (
            [one for one in left if side in (None, one.times.tuned.within_l2)]
            for left in (by_rule, by_nearest)
        )
        trusted = regret.up_to(chosen) if side is not None else []
        ways: dict[str, list[Chosen]] = {
            "called configuration": list(called(kernel, times, by_rule, side)),
            "without the margin": list(called(kernel, times, by_rule, side, has_margin=False)),
            "rule": [(one.times, one.pick.label) for one in chosen],
            "rule where it is trusted": [(one.times, one.pick.label) for one in trusted],
            "nearest alone": [(one.times, one.pick.label) for one in nearest],
            "best default": _first(regret.safest(here, kernel.baseline), here),
            "baseline": [(one, label) for one in here if (label := _baseline(kernel, one))],
        }
        rows += [[name, way, str(len(those)), *_shares(those)] for way, those in ways.items() if those]
    columns = ("L2 cache", "way", "problems", "median", "90th percentile", "largest", LOST)
    return TextTable(f"{ledger.name} on {ledger.gpu}: regret", columns, rows, numbers=columns[2:])


def called(
    kernel: Kernel,
    times: Sequence[Times],
    by_rule: Sequence[Left],
    side: bool | None,
    has_margin: bool = True,
) -> Iterator[Chosen]:
    """Yield the configurations that callers get on a side of the L2 cache; None means both.

    Callers get the rule's choice if it is trusted, or safer than the safest default that fits, or clearly
    faster; else that default. If it is not predicted clearly faster than the baseline, they get the
    baseline, unless the rule's choice is faster at all neighbours that count.
    """
    if side is None:
        for within_l2 in (True, False):
            yield from called(kernel, times, by_rule, within_l2, has_margin)
        return
    here = [one for one in times if one.tuned.within_l2 == side]
    chosen = [one for one in by_rule if one.times.tuned.within_l2 == side]
    if not chosen:
        return
    region = regret.region(side, here, chosen, kernel.baseline)
    for one in chosen:
        is_trusted = region.distance is not None and one.pick.distance <= region.distance
        known = region.fallback[words_text(one.times.tuned.problem)]
        safest = next((label for label in known if label in one.times.us), None)
        label, slowest = one.pick.label, 0.0
        is_by_rule = is_trusted or (
            safest is not None
            and (
                is_safer(kernel, region, known[safest])
                or prediction.is_faster_by_steps(one.predicted, label, safest)
            )
        )
        if not is_by_rule:
            label, slowest = safest or "", prediction.SLOWEST
        if has_margin:
            label = _if_faster(kernel, one, label, prediction.MARGIN, slowest)
            is_default = label == safest and not (is_by_rule or _is_baseline(kernel, label))
            is_known = is_default and len(one.around) >= FEWEST and not one.predicted
            if is_known and prediction.is_clearly_faster_than(one.around, one.pick.label, label):
                label = one.pick.label
            is_left = not is_trusted and _is_baseline(kernel, label)
            by_steps = prediction.speedup_of(one.predicted, kernel, one.pick.label)
            if is_left and prediction.is_faster_all_around(one.around, one.pick.label, by_steps):
                label = one.pick.label
        if label in one.times.us:
            yield one.times, label


def _if_faster(kernel: Kernel, left: Left, label: str, margin: float, slowest: float = 0.0) -> str:
    """Return the label of a configuration if it is called, else the baseline's."""
    by_steps = prediction.speedup_of(left.predicted, kernel, label)
    is_called = not takes_inputs(kernel.provider(kernel.baseline)) or prediction.is_clearly_faster(
        left.around, label, margin, slowest, by_steps
    )
    return label if is_called or _is_baseline(kernel, label) else _baseline(kernel, left.times) or ""


def _is_baseline(kernel: Kernel, label: str) -> bool:
    return label.partition(" ")[0] == kernel.baseline


def _baseline(kernel: Kernel, one: Times) -> str | None:
    """Return the label of the fastest measured configuration of the baseline; None if there is none."""
    labels = [label for label in one.us if _is_baseline(kernel, label)]
    return min(labels, key=lambda label: one.us[label], default=None)


def _first(labels: Iterable[str], some: Sequence[Times]) -> list[Chosen]:
    """Return the first label that was measured, for each problem that has one."""
    chosen = [(one, next((label for label in labels if label in one.us), None)) for one in some]
    return [(one, label) for one, label in chosen if label is not None]


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
        for left in regret.leave_out(ledger.times, ledger.growth):
            for row in (f"{ledger.name} on {ledger.gpu}", "all"):
                errors = found.setdefault(row, [[], [], []])
                for kept, error in zip(errors, _errors(ledger, left), strict=True):
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


def _errors(ledger: LedgerTimes, left: Left) -> tuple[float | None, float | None, float | None]:
    here = rule.numbers(left.times.tuned.problem)
    others = [one.tuned for one in ledger.times if rule.numbers(one.tuned.problem) != here]
    one = left.times.tuned
    comparable = rule.neighbours_of(
        others, one.problem, one.within_l2, rule.scales(ledger.kernel), len(others)
    )
    problem = problems.make(ledger.kernel.problem, Values(one.problem))
    label = left.pick.label
    us = left.predicted.get(label)
    ratio = prediction.speedup_of(left.predicted, ledger.kernel, label)
    if not left.predicted:
        us = prediction.predicted_us(ledger.kernel, comparable, problem, label)
        ratio = prediction.speedup(left.around, label)
    if us is None:
        return None, None, None
    measured = left.times.us[label]
    if ratio is None or one.baseline_us is None:
        return _error(us, measured), None, None
    of_baseline = one.baseline_us
    return _error(us, measured), _error(us * ratio, of_baseline), _error(ratio, of_baseline / measured)


def _error(one: float, other: float) -> float:
    return max(one / other, other / one) - 1


def by_siblings(ledgers: Sequence[LedgerTimes]) -> Iterator[TextTable]:
    """Yield a table for each pair of GPUs of the same compute capability: what callers get on one of them by
    the other's times, first by all of these and then with the problem's shape left out, beside the
    baseline."""
    gpus = dict.fromkeys((one.gpu, one.capability) for one in ledgers)
    for used, capability in gpus:
        for other, its in gpus:
            if used != other and capability is not None and capability == its:
                table = _by_sibling(ledgers, used, other)
                if table.rows:
                    yield table


def _by_sibling(ledgers: Sequence[LedgerTimes], used: str, other: str) -> TextTable:
    theirs = {one.name: one for one in ledgers if one.gpu == other}
    found: dict[str, list[list[Chosen]]] = {}
    for ledger in ledgers:
        if ledger.gpu == used and ledger.name in theirs:
            its = theirs[ledger.name]
            baseline = [(one, label) for one in ledger.times if (label := _baseline(ledger.kernel, one))]
            found[ledger.name] = [
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
    tuned = [one.tuned for one in its.times]
    for one in ledger.times:
        here = rule.numbers(one.tuned.problem)
        others = [other for other in tuned if not is_left_out or rule.numbers(other.problem) != here]
        left = regret.chosen(one, others, its.growth, ledger.growth.gpu)
        label = _baseline(ledger.kernel, one)
        if left is not None:
            label = _if_faster(ledger.kernel, left, left.pick.label, prediction.ELSEWHERE_MARGIN)
        if label:
            yield one, label
