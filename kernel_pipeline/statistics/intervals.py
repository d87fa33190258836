"""Estimates from paired times: an interval for their ratio, and a verdict.

Candidates are measured side by side in rounds. A round gives a ratio of their times, and the logarithms of
the ratios of several rounds are taken to be normal. Two times are ``same`` if the interval lies within the
margin; one is ``faster`` or ``slower`` if it lies beyond, and if that is significant among all that was
asked.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt
from statistics import fmean, median, stdev
from typing import Any, Literal, TypeVar

from ..records.base import Record

Verdict = Literal["same", "faster", "slower", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """A ratio of times with its interval, and how probable one so far from 1 is where there is no difference
    beyond the rule's bound (1 where it is not beyond)."""

    rounds: int
    ratio: float
    low: float
    high: float
    probability: float


K = TypeVar("K", bound=Hashable)

FEWEST_ROUNDS = 2
"""One ratio says nothing of how much ratios differ."""

KNOWN = 8
"""Degrees of freedom that what is known of equal kernels' noise counts for: as many as nine rounds have."""

FEWEST_POOLED = 10
"""Ratios whose rounds together tell of a noise that nobody has measured."""

WIDEST = 10.0
"""Half of the widest interval, as a logarithm: a factor of 22 000 says as little as any beyond."""


class Rule(Record):
    """When two times are called different.

    margin:
        Relative: 0.01 is 1 %, the same way up and down.
    beyond:
        What a difference has to be beyond: the margin, or zero.
    confidence:
        The confidence of the two-sided interval.
    false_discoveries:
        The largest share of wrong verdicts among all "different" ones (Benjamini and Hochberg, 1995).
    """

    margin: float = 0.01
    beyond: Literal["margin", "zero"] = "margin"
    confidence: float = 0.9
    false_discoveries: float = 0.05

    @property
    def within(self) -> float:
        """The margin of a ratio's logarithm."""
        return log1p(self.margin)

    @property
    def bound(self) -> float:
        """What a ratio's logarithm has to be beyond."""
        return self.within if self.beyond == "margin" else 0.0


def scipy_stats() -> Any:
    """Imported when something is computed: reports only read verdicts. Raises ImportError without SciPy."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError("verdicts need SciPy: pip install 'kernel-pipeline[compare]'.") from error
    return stats


def estimate(ratios: Sequence[float], rule: Rule, noise: float = 0.0) -> Estimate:
    """The ratio that rounds' ratios tell of, by Student's t.

    Few rounds say little of how much rounds differ. The ``noise`` that is known of equal kernels (of
    ``deviation``) is therefore weighed in with the rounds' own (moderated t: Smyth, 2004); 0 stands for none.
    """
    logs = [log(ratio) for ratio in ratios]
    rounds = len(logs)
    if rounds < FEWEST_ROUNDS:
        middle = exp(logs[0]) if logs else 1.0
        return Estimate(rounds, middle, 0.0, inf, 1.0)
    mean, known = fmean(logs), KNOWN if noise else 0
    freedom = rounds - 1 + known
    spread = sqrt(((rounds - 1) * stdev(logs) ** 2 + known * noise**2) / freedom)
    error = spread / sqrt(rounds)
    half = min(WIDEST, float(scipy_stats().t.ppf((1 + rule.confidence) / 2, freedom)) * error)
    return Estimate(
        rounds, exp(mean), exp(mean - half), exp(mean + half), _probability(mean, error, freedom, rule)
    )


def deviation(logs: Sequence[Sequence[float]]) -> float:
    """The standard deviation that the logarithms of equal candidates' ratios have, of which each point gives
    some.

    It is that of the middle point, so that the few that something from outside disturbed do not decide: a
    point's sum of squares is distributed as chi-squared, whose median is known.
    """
    squares = [
        sum(one * one for one in some) / float(scipy_stats().chi2.ppf(0.5, len(some))) for some in logs
    ]
    return sqrt(median(squares))


def pooled(logs: Sequence[Sequence[float]]) -> float:
    """The noise of ratios that are not of equals: what each one's rounds differ by from their own mean.

    As in ``deviation`` the middle one decides. It is 0, which stands for none known, where fewer than
    ``FEWEST_POOLED`` have the rounds that it takes.
    """
    squares = [
        (len(some) - 1) * stdev(some) ** 2 / float(scipy_stats().chi2.ppf(0.5, len(some) - 1))
        for some in logs
        if len(some) >= FEWEST_ROUNDS
    ]
    return sqrt(median(squares)) if len(squares) >= FEWEST_POOLED else 0.0


def _probability(mean: float, error: float, freedom: int, rule: Rule) -> float:
    excess = abs(mean) - rule.bound
    if excess <= 0:
        return 1.0
    if error == 0:
        return 0.0
    tail = float(scipy_stats().t.sf(excess / error, freedom))
    # Of zero a ratio may lie on either side; of the margin it is on the one side where it is.
    return min(1.0, 2 * tail) if rule.beyond == "zero" else tail


def verdicts(estimates: Mapping[K, Estimate], rule: Rule) -> dict[K, Verdict]:
    """The verdict on each of all ratios that were asked for, of the first time over the second's."""
    decidable = [name for name, one in estimates.items() if one.rounds >= FEWEST_ROUNDS]
    found: dict[K, Verdict] = dict.fromkeys(estimates, "undecided")
    if not decidable:
        return found
    adjusted = scipy_stats().false_discovery_control([estimates[name].probability for name in decidable])
    for name, probability in zip(decidable, adjusted, strict=True):
        one = estimates[name]
        low, high = (log(value) if value > 0 else -inf for value in (one.low, one.high))
        if -rule.within <= low and high <= rule.within:
            found[name] = "same"
        elif probability <= rule.false_discoveries and low > rule.bound:
            found[name] = "slower"
        elif probability <= rule.false_discoveries and high < -rule.bound:
            found[name] = "faster"
    return found
