"""Predict a configuration's time, and how much faster than the baseline it is, between tuned problems.

Both predictions are means over the rule's neighbours with the rule's weights (module ``rule``). A
configuration that is not predicted clearly faster than the baseline is not called. docs/tuned.md has the
errors of these predictions, found by leaving out each shape of the ledgers of an H100 and an H200.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import Kernel, Work
from . import rule
from .rule import Neighbour

MARGIN = 1.05
"""The rule's choice is called if it is predicted to be at least this many times as fast as the baseline.

With each shape of the ledgers of 2026-11-30 left out, the choices between tuned problems are slower than the
baseline by more than 3 % at 6 of 386 problems without a margin, and at 1 with this margin and ``SLOWEST``. 56
choices are given up, which are 0.6 % faster than the baseline on average. A margin of 2 % loses at 2
problems, of 3 % at 1, and of 10 % at none, where the choices given up are 1.2 % faster."""

SLOWEST = 0.97
"""A provider's default configuration is not called if it is less than this many times as fast as the baseline
at a neighbour. Unlike the rule's choice, it was not chosen by its times there. Without this limit 3 of 386
choices lose."""

ELSEWHERE_MARGIN = 1.15
"""The margin for times of another GPU or dtype, and for the rule's choice in place of a safer configuration.
By the ledgers of 2026-11-30, choosing for an H200 by an H100's table and the reverse, none of 395 choices is
slower than the baseline by more than 3 % with this margin, also with each shape left out. Then 10 lose with a
margin of 5 %, and 15 without one, at the same mean speed."""

COUNTS, ALONE, ENOUGH = 0.05, 10.0, 3
"""A neighbour with ``COUNTS`` of the weights counts. Far from tuned problems, where callers would get the
baseline, the rule's choice is called if all neighbours that count agree (``is_faster_all_around``). With each
shape of both ledgers left out, it is called at 9 more of 448 problems, and is 1.09 to 70 times as fast as the
baseline there. A single neighbour may be a cliff: torch's product of 2049 x 4095 x 1023 takes four
times as long as that of 2048 x 4096 x 1024. So one neighbour decides only if all neighbours, ``ENOUGH`` or
more, agree. With each problem of both ledgers left out, the rule's choice is called at 38 more problems by
this, or at 10 more without the problems within one doubling. None is slower than the baseline."""

FLOOR_US = 3.0
"""The part of a time in microseconds that does not grow with the work: the launch, and the first and last
blocks. At most ``FLOOR_SHARE`` of a time is counted as such."""

FLOOR_SHARE = 0.9


def speedups(around: Sequence[Neighbour], label: str) -> list[tuple[Neighbour, float]]:
    """Return how many times as fast as the baseline a configuration is, at each neighbour with a time of the
    baseline. Where its time is unknown, it counts as ``rule.MOST`` times the fastest, as in the rule."""
    return [
        (one, one.tuned.baseline_us / (one.tuned.us * one.tuned.near.get(label, rule.MOST)))
        for one in around
        if one.tuned.us and one.tuned.baseline_us
    ]


def speedup(around: Sequence[Neighbour], label: str) -> float | None:
    """Return how many times as fast as the baseline a configuration is predicted to be, as the weighted
    geometric mean over the neighbours; None if no neighbour has a time of the baseline."""
    return _mean(speedups(around, label))


def is_clearly_faster(
    around: Sequence[Neighbour],
    label: str,
    margin: float = MARGIN,
    slowest: float = 0.0,
    by_steps: float | None = None,
) -> bool:
    """Whether a configuration is predicted to be at least ``margin`` times as fast as the baseline, and is at
    least ``slowest`` times as fast at each neighbour. ``by_steps`` is the ratio of times that are predicted
    from steps, which decides alone; None without steps."""
    if by_steps is not None:
        return by_steps >= margin
    found = speedups(around, label)
    mean = _mean(found)
    return mean is not None and mean >= margin and min(ratio for _, ratio in found) >= slowest


def is_clearly_faster_than(around: Sequence[Neighbour], label: str, other: str | None) -> bool:
    """Whether a configuration is predicted to be at least ``ELSEWHERE_MARGIN`` times as fast as another; None
    stands for one that was not measured."""
    ratios = [
        (one, one.tuned.near.get(other or "", rule.MOST) / one.tuned.near.get(label, rule.MOST))
        for one in around
    ]
    mean = _mean(ratios)
    return mean is not None and mean >= ELSEWHERE_MARGIN


def is_faster_all_around(around: Sequence[Neighbour], label: str, by_steps: float | None = None) -> bool:
    """Whether a configuration is predicted clearly faster than the baseline by neighbours that agree: by
    ``ELSEWHERE_MARGIN`` on average, and by ``MARGIN`` at each neighbour that counts. If only one counts, the
    configuration has to be faster by ``ELSEWHERE_MARGIN`` at each of at least ``ENOUGH`` neighbours, or by
    ``ALONE``. With steps the ratio ``by_steps`` has to be ``ELSEWHERE_MARGIN``."""
    if by_steps is not None:
        return by_steps >= ELSEWHERE_MARGIN
    found = speedups(around, label)
    total = math.fsum(one.weight for one, _ in found)
    counting = [ratio for one, ratio in found if one.weight >= COUNTS * total]
    mean = _mean(found)
    if mean is None or min(counting) < MARGIN:
        return False
    if len(counting) == 1 and len(found) >= ENOUGH:
        return min(ratio for _, ratio in found) >= ELSEWHERE_MARGIN or mean >= ALONE
    return mean >= (ELSEWHERE_MARGIN if len(counting) > 1 else ALONE)


def speedup_of(times: Mapping[str, float], kernel: Kernel, label: str) -> float | None:
    """Return how many times as fast as the baseline a configuration is, by times that are predicted from
    steps, by label; None if one of both is unknown."""
    baseline, us = times.get(kernel.baseline), times.get(label)
    return None if baseline is None or us is None else baseline / us


def is_faster_by_steps(times: Mapping[str, float], label: str, other: str) -> bool:
    """Whether a configuration is clearly faster than another by times that are predicted from steps, by
    label: at least ``ELSEWHERE_MARGIN`` times as fast."""
    return {label, other} <= times.keys() and times[other] >= ELSEWHERE_MARGIN * times[label]


def predicted_us(kernel: Kernel, comparable: Sequence[Neighbour], problem: Any, label: str) -> float | None:
    """Return the predicted time of a configuration in microseconds; None if its time is unknown.

    ``comparable`` are all comparable tuned problems, the nearest first. The time at each of the rule's
    neighbours, less the floor, is scaled by the ratio of the least times for the work of both problems. The
    least time is limited by bytes or by operations, at the highest rates of the configuration at the
    comparable problems. The prediction is the weighted geometric mean. A configuration without a time at any
    neighbour is predicted as in ``speedups``.
    """
    around = comparable[: rule.NEIGHBOURS]
    otherwise = None if any(label in one.tuned.near for one in around) else rule.MOST
    points: dict[Neighbour, tuple[Work, float]] = {}
    for one in comparable:
        ratio = one.tuned.near.get(label, otherwise)
        work = kernel.work(kernel.problem(**one.tuned.problem))
        if one.tuned.us and ratio and work.bytes > 0:
            points[one] = work, one.tuned.us * ratio
    if not points:
        return None
    byte_rate = max(work.bytes / (us - _floor(us)) for work, us in points.values())
    flop_rate = max(work.flops / (us - _floor(us)) for work, us in points.values())

    def least_us(work: Work) -> float:
        return max(work.bytes / byte_rate, work.flops / flop_rate if flop_rate else 0.0)

    here = least_us(kernel.work(problem))
    return _mean(
        [
            (one, _floor(us) + (us - _floor(us)) * here / least_us(work))
            for one, (work, us) in points.items()
            if one in around
        ]
    )


def _floor(us: float) -> float:
    return min(FLOOR_US, FLOOR_SHARE * us)


def _mean(values: Sequence[tuple[Neighbour, float]]) -> float | None:
    """Return the weighted geometric mean; None of no values."""
    if not values:
        return None
    total = math.fsum(one.weight for one, _ in values)
    return math.exp(math.fsum(one.weight * math.log(value) for one, value in values) / total)
