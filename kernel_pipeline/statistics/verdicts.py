"""Estimates from paired times: an interval for their ratio, and a verdict.

Candidates are measured side by side in rounds. Each round gives a ratio of their times, and the logarithms of
the ratios are assumed to be normally distributed. Two times are ``same`` if the interval of the ratio lies
within the margin. A time is ``faster`` or ``slower`` if the interval lies beyond the margin, and if the
difference is significant among all comparisons.
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
    """A ratio of times with its confidence interval. ``probability`` is the p-value for no difference beyond
    the rule's margin; 1 if the ratio is within the margin."""

    rounds: int
    ratio: float
    low: float
    high: float
    probability: float


K = TypeVar("K", bound=Hashable)

FEWEST_ROUNDS = 2
"""The minimum number of rounds for an interval: a single ratio does not show the spread."""

KNOWN = 8
"""The degrees of freedom given to the known noise of equal kernels: as many as nine rounds have."""

FEWEST_POOLED = 10
"""The minimum number of ratios whose rounds together give an estimate of the noise."""

WIDEST = 10.0
"""The largest half-width of an interval, as a logarithm: a factor of 22 000."""


class Rule(Record):
    """The rule by which two times are called different.

    margin:
        The relative margin: 0.01 is 1 %, symmetric in the logarithm.
    confidence:
        The confidence of the two-sided interval.
    false_discoveries:
        The false discovery rate of ``faster`` and ``slower`` verdicts (Benjamini and Hochberg, 1995).
    """

    margin: float = 0.01
    confidence: float = 0.9
    false_discoveries: float = 0.05

    @property
    def within(self) -> float:
        """The margin of the logarithm of a ratio."""
        return log1p(self.margin)


def scipy_stats() -> Any:
    """Import ``scipy.stats`` late, because reports only read verdicts. Raises ImportError without SciPy."""
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError("verdicts need SciPy: pip install '.[compare]' in a checkout.") from error
    return stats


def estimate(ratios: Sequence[float], rule: Rule, noise: float = 0.0) -> Estimate:
    """Estimate the ratio from the ratios of rounds, by Student's t.

    Few rounds show little of the spread between rounds. The known ``noise`` of equal kernels (from
    ``deviation``) is therefore combined with the spread of the rounds (moderated t: Smyth, 2004). 0 means
    that no noise is known.
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
    """Return the standard deviation of the logarithms of equal candidates' ratios. ``logs`` has each point's
    logarithms.

    It is the median over the points, so that a few disturbed points have no influence. A point's sum of
    squares follows a chi-squared distribution, whose median scales it.
    """
    squares = [
        sum(one * one for one in some) / float(scipy_stats().chi2.ppf(0.5, len(some))) for some in logs
    ]
    return sqrt(median(squares))


def pooled(logs: Sequence[Sequence[float]]) -> float:
    """Return the noise of the ratios of unequal candidates: the spread of the rounds of each ratio around
    their mean.

    As in ``deviation``, the noise is a median. Return 0, which means unknown, if fewer than ``FEWEST_POOLED``
    ratios have enough rounds.
    """
    squares = [
        (len(some) - 1) * stdev(some) ** 2 / float(scipy_stats().chi2.ppf(0.5, len(some) - 1))
        for some in logs
        if len(some) >= FEWEST_ROUNDS
    ]
    return sqrt(median(squares)) if len(squares) >= FEWEST_POOLED else 0.0


def _probability(mean: float, error: float, freedom: int, rule: Rule) -> float:
    excess = abs(mean) - rule.within
    if excess <= 0:
        return 1.0
    if error == 0:
        return 0.0
    return float(scipy_stats().t.sf(excess / error, freedom))


def verdicts(estimates: Mapping[K, Estimate], rule: Rule) -> dict[K, Verdict]:
    """Return the verdict on each ratio of a candidate's time to the baseline's, controlling the false
    discovery rate over all of them."""
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
        elif probability <= rule.false_discoveries and low > rule.within:
            found[name] = "slower"
        elif probability <= rule.false_discoveries and high < -rule.within:
            found[name] = "faster"
    return found
