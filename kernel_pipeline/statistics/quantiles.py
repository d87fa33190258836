"""Order statistics of samples. They assume no distribution, because times are skewed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

MANY = 200
"""Above this number of samples ranks come from the normal approximation."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return a quantile of sorted samples by linear interpolation between the two nearest."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval for the median of sorted samples, of 95 % or slightly more.

    The ends are two samples of symmetric rank (Hahn and Meeker, *Statistical Intervals*, 5.2). Below six
    samples no pair reaches 95 %, and the interval is the whole range.
    """
    rank = _rank(len(ordered))
    return ordered[rank], ordered[-1 - rank]


@cache
def _rank(n: int) -> int:
    """Return the largest ``k`` for which the median lies between the samples ``k`` from both ends in 95 % of
    cases.

    Each sample is below the median with probability 1/2, so the number of samples below it is binomial, and
    nearly normal for many samples.
    """
    if n > MANY:
        return math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1
    outside, rank = 0, 0
    while 40 * (outside := outside + math.comb(n, rank)) <= 2**n:
        rank += 1
    return max(0, rank - 1)


def relative_half_width(samples: Sequence[float]) -> float:
    """Return the half-width of the median's 95 % confidence interval divided by the median; infinite without
    samples."""
    if not samples:
        return math.inf
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    return (high - low) / 2 / quantile(ordered, 0.5)
