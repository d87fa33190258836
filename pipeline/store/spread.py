"""The spread of times of one point between processes, GPUs of one model and hosts, and the interval of a
row's time that includes it.

``python -m pipeline.verify note=true`` finds the spread by duration, and stores it with the ceilings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil, hypot, inf, log, sqrt
from statistics import median

from kernel_pipeline.records.measurement import Timing

DURATIONS = {"3us": 3.0, "10us": 10.0, "100us": 100.0, "1ms": 1e3, "longer": inf}
"""Classes of durations, with the upper bound of each in microseconds."""

OF_95 = 1.645 / 1.960
"""The ratio of the half-widths of a 90 % and a 95 % interval, for normally distributed errors."""

SHARE = 0.9
"""The share of times that lie in their intervals."""

FEWEST = 10
"""The minimum number of pairs of times in a class from which its spread is found."""


def duration_of(us: float) -> str:
    """Return the class of a time in microseconds."""
    return next(name for name, most in DURATIONS.items() if us <= most)


def own(timing: Timing) -> float:
    """Return half of the 90 % interval of a row's median, relative to the median, from its own samples."""
    return OF_95 * timing.rel_ci


def half_width(timing: Timing, added: Mapping[str, float]) -> float:
    """Return half of the 90 % interval of a row's time, relative to the time: the spread of its own samples
    and, in quadrature, the spread ``added`` by another process, GPU and host."""
    return hypot(own(timing), added.get(duration_of(timing.median_us), 0.0))


def interval_us(timing: Timing, added: Mapping[str, float]) -> tuple[float, float]:
    """Return the interval in microseconds in which nine of ten measurements of the point lie. Its lower end
    is also reduced by ``excess_us``."""
    half = half_width(timing, added) * timing.median_us
    return max(0.0, timing.median_us - half - timing.excess_us), timing.median_us + half


def found(pairs: Iterable[tuple[Timing, Timing]]) -> dict[str, float]:
    """Return the spread that another process, GPU and host add, by duration.

    Nine of ten pairs of times of one point differ by no more than this spread and both times' own intervals,
    added in quadrature. Classes with few pairs are left out.
    """
    apart: dict[str, list[float]] = defaultdict(list)
    owns: dict[str, list[float]] = defaultdict(list)
    for before, after in pairs:
        name = duration_of(before.median_us)
        apart[name].append(abs(log(after.median_us / before.median_us)))
        owns[name].append(own(before) ** 2 + own(after) ** 2)
    added = {}
    for name, some in apart.items():
        if len(some) >= FEWEST:
            ninth = sorted(some)[ceil(SHARE * len(some)) - 1]
            added[name] = round(sqrt(max(0.0, ninth**2 - median(owns[name]))), 5)
    return added
