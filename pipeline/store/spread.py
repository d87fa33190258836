"""How far times of one point are apart that different processes, GPUs of one model and hosts measure, and the
interval that a row's time has with it.

``python -m pipeline.verify note=true`` finds it by duration, and notes it with the ceilings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil, hypot, inf, log, sqrt
from statistics import median

from kernel_pipeline.records.measurement import Timing

DURATIONS = {"3us": 3.0, "10us": 10.0, "100us": 100.0, "1ms": 1e3, "longer": inf}
"""Classes of times, each up to so many microseconds."""

OF_95 = 1.645 / 1.960
"""The half-width of a 90 % interval over that of a 95 % one, of normal errors."""

SHARE = 0.9
"""The share of times that lie in their intervals."""

FEWEST = 10
"""Pairs of times that a class takes to tell how far nine of ten are apart."""


def duration_of(us: float) -> str:
    """The class of a time in microseconds."""
    return next(name for name, most in DURATIONS.items() if us <= most)


def own(timing: Timing) -> float:
    """Half of the 90 % interval of a row's median over it, by its own samples."""
    return OF_95 * timing.rel_ci


def half_width(timing: Timing, added: Mapping[str, float]) -> float:
    """Half of the 90 % interval of a row's time over it: that of its own samples and what another process,
    GPU and host add, in quadrature."""
    return hypot(own(timing), added.get(duration_of(timing.median_us), 0.0))


def interval_us(timing: Timing, added: Mapping[str, float]) -> tuple[float, float]:
    """The interval in microseconds in which nine of ten measurements of the point lie. It reaches down by
    ``excess_us``, too."""
    half = half_width(timing, added) * timing.median_us
    return max(0.0, timing.median_us - half - timing.excess_us), timing.median_us + half


def found(pairs: Iterable[tuple[Timing, Timing]]) -> dict[str, float]:
    """What another process, GPU and host add, by duration: nine of ten pairs of times of one point are apart
    by no more than that and both times' own intervals, in quadrature. Classes of few pairs are left out."""
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
