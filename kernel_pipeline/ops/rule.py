"""Which configuration a problem is given that nobody has measured: the rule between tuned problems.

It looks at the six tuned problems that are nearest, by the logarithms of their numbers, and takes the
configuration that was best there: by the mean of how many times as long it took as the best one, weighted
by nearness (inverse distance weighting: Shepard, "A two-dimensional interpolation function for
irregularly-spaced data", 1968). Only problems of the same words (dtype and the like) count, and those on the
other side of the L2 cache only where there are too few on this side: what limits a problem whose data fit
the cache is another thing.

The same code says at run time what is called, and in a table what the rule's regret is, found by leaving out
each problem. Its constants are of those that were tried on the ledgers of five kernels on an H200, and
docs/tuned.md says how others did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..contract import Value

NEIGHBOURS = 6
"""Tuned problems that the rule looks at."""

MOST = 1.25
"""A configuration that took more than this many times the best's time is as bad as one that was not
measured."""

OTHER_NUMBER = 0.25
"""What a doubling counts of a dimension that no size stands for; of the others it counts 1."""

NEAREST = 0.05
"""What is added to a distance, so that the nearest does not decide all alone."""

POWER = 3
"""Of the distance, by which a neighbour's weight falls."""


@dataclass(frozen=True)
class Tuned:
    """A problem that was measured.

    ``near`` are the configurations that took at most ``MOST`` times as long as the best, by their labels,
    with that ratio; ``failed`` those that gave no right output here.
    """

    problem: Mapping[str, Value]
    within_l2: bool
    near: Mapping[str, float]
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pick:
    """A configuration for a problem, and how many doublings away the nearest tuned problem is; infinitely
    many where there is none on this side of the cache."""

    label: str
    distance: float


def words(problem: Mapping[str, Value]) -> dict[str, Value]:
    """What of a problem is no number: its dtype, whether it is causal."""
    return {name: value for name, value in problem.items() if not _is_number(value)}


def numbers(problem: Mapping[str, Value]) -> dict[str, int]:
    """The numbers of a problem."""
    return {name: int(value) for name, value in problem.items() if _is_number(value)}


def pick(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    size: Sequence[str],
    can: Callable[[str], bool],
    neighbours: int = NEIGHBOURS,
) -> Pick | None:
    """The configuration for a problem that is not among the tuned ones; None where there is nothing to go
    by.

    ``size`` are the dimensions that a size stands for. ``can`` says of a label whether it may be taken:
    whether it fits the problem. What failed at one of the neighbours is not taken. ``neighbours`` is how
    many there are.
    """
    around = _nearest(tuned, problem, within_l2, size)[:neighbours]
    failed = {label for _, one in around for label in one.failed}
    candidates = {label for _, one in around for label in one.near} - failed
    weights = [(distance + NEAREST) ** -POWER for distance, _ in around]
    ranked = []
    for label in candidates:
        losses = [math.log(min(one.near.get(label, MOST), MOST)) for _, one in around]
        weighted = math.fsum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        ranked.append((weighted, label))
    away = min((distance for distance, one in around if one.within_l2 == within_l2), default=math.inf)
    return next((Pick(label, away) for _, label in sorted(ranked) if can(label)), None)


def _nearest(
    tuned: Iterable[Tuned], problem: Mapping[str, Value], within_l2: bool, size: Sequence[str]
) -> list[tuple[float, Tuned]]:
    """The nearest tuned problems with their distances in doublings; those on the other side of the cache
    last, equally distant ones in the order of their values."""
    found = []
    for one in tuned:
        if words(one.problem) == words(problem) and one.problem.keys() == problem.keys():
            values = sorted(numbers(one.problem).items())
            order = one.within_l2 != within_l2, _distance(one.problem, problem, size), values
            found.append((order, one))
    found.sort(key=lambda each: each[0])
    return [(order[1], one) for order, one in found]


def _distance(one: Mapping[str, Value], other: Mapping[str, Value], size: Sequence[str]) -> float:
    here, there = numbers(one), numbers(other)
    return math.hypot(
        *(
            (1.0 if name in size else OTHER_NUMBER) * math.log2(max(1, here[name]) / max(1, there[name]))
            for name in here
        )
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
