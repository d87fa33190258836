"""Summaries of samples that assume no distribution: times are skewed, so order statistics speak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

MANY = 200
"""Samples, from which on ranks come from the normal distribution."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """Quantile of sorted samples by linear interpolation between the two nearest."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Confidence interval of the median of sorted samples, of 95 % or a little more.

    Its ends are two samples, as far from the first as from the last (Hahn and Meeker, *Statistical
    Intervals*, 5.2). Below six samples no pair reaches 95 %, and the interval is the whole range.
    """
    rank = _rank(len(ordered))
    return ordered[rank], ordered[-1 - rank]


@cache
def _rank(n: int) -> int:
    """The largest ``k`` for which the median lies between the samples ``k`` from both ends in 95 % of cases.

    Each sample is under the median with probability 1/2, so their number is binomial; of many samples nearly
    normal."""
    if n > MANY:
        return math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1
    outside, rank = 0, 0
    while 40 * (outside := outside + math.comb(n, rank)) <= 2**n:
        rank += 1
    return max(0, rank - 1)


def relative_half_width(samples: Sequence[float]) -> float:
    """Half-width of the median's 95 % confidence interval over the median; infinite for no samples."""
    if not samples:
        return math.inf
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    return (high - low) / 2 / quantile(ordered, 0.5)
