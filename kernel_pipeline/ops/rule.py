"""Choose a configuration for a problem that was not measured: the rule between tuned problems.

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
"""The number of nearest tuned problems that the rule uses."""

MOST = 1.25
"""A configuration slower than this many times the best counts like one that was not measured."""

OTHER_NUMBER = 0.25
"""The distance of a doubling in a dimension that no size stands for; in the others it is 1."""

NEAREST = 0.05
"""Added to each distance, so that the nearest problem does not decide alone."""

POWER = 3
"""The exponent of the distance in a neighbour's weight."""


@dataclass(frozen=True)
class Tuned:
    """A measured problem.

    ``near`` are the configurations that took at most ``MOST`` times as long as the best, by their labels,
    with that ratio; ``failed`` those without a right output at this problem.
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
    """Return the dimensions of a problem that are no numbers: its dtype, whether it is causal."""
    return {name: value for name, value in problem.items() if not _is_number(value)}


def numbers(problem: Mapping[str, Value]) -> dict[str, int]:
    """Return the numeric dimensions of a problem."""
    return {name: int(value) for name, value in problem.items() if _is_number(value)}


def pick(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    size: Sequence[str],
    can: Callable[[str], bool],
    neighbours: int = NEIGHBOURS,
) -> Pick | None:
    """Return the configuration for a problem that is not tuned; None without a neighbour.

    ``size`` are the dimensions that a size stands for. ``can`` says whether a label's configuration fits the
    problem. A configuration that failed at a neighbour is not taken. ``neighbours`` is how many there are.
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
