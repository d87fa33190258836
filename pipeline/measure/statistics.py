"""Summaries of samples that assume no distribution: times are skewed, so order statistics speak."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(ordered: Sequence[float], q: float) -> float:
    """Quantile of sorted samples by linear interpolation between the two nearest."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """95 % confidence interval of the median of sorted samples.

    The ranks come from the normal approximation of the binomial (Hahn and Meeker, *Statistical
    Intervals*, 5.2): n/2 -+ 1.96 * sqrt(n)/2. Below six samples no pair of ranks reaches 95 %, and the
    interval is the whole range.
    """
    n = len(ordered)
    half_width = 1.96 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - half_width) - 1)
    high = min(n - 1, math.ceil(n / 2 + half_width))
    return ordered[low], ordered[high]


def relative_half_width(samples: Sequence[float]) -> float:
    """Half-width of the median's 95 % confidence interval over the median; infinite for no samples."""
    if not samples:
        return math.inf
    ordered = sorted(samples)
    low, high = median_interval(ordered)
    return (high - low) / 2 / quantile(ordered, 0.5)
