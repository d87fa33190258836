"""Choose a configuration for a problem that was not measured: the rule between tuned problems.

The rule takes the six nearest tuned problems, by the logarithms of their numeric dimensions. It chooses the
configuration with the smallest mean slowdown there, the ratio of its time to the best time. The mean is
geometric and weighted by nearness (inverse distance weighting: Shepard, "A two-dimensional interpolation
function for irregularly-spaced data", 1968). Problems that differ in a non-numeric dimension,
such as the dtype, are not used. Problems on the other side of the L2 cache are used only if there are too few
on this side, because other limits apply to data that fit in the cache.

The same code chooses at run time, and computes the rule's regret in a table by leaving out each problem. The
constants were chosen on the ledgers of five kernels on an H200; docs/log/2026-11-28-tuned-rule.md compares
other rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ..declared import Value

NEIGHBOURS = 6
"""The number of nearest tuned problems that the rule uses."""

MOST = 1.25
"""The largest slowdown that the rule distinguishes: a slower configuration is treated as not measured."""

OTHER_NUMBER = 0.25
"""The distance of a doubling in a dimension that is not part of the kernel's size. In a dimension of the size
it is 1."""

NEAREST = 0.05
"""Added to each distance, so that a very near problem does not decide alone."""

POWER = 3
"""The exponent of the distance in a neighbour's weight."""


@dataclass(frozen=True)
class Tuned:
    """A measured problem.

    ``near`` maps the labels of the configurations that took at most ``MOST`` times as long as the best to
    that ratio. ``failed`` are the labels of configurations without a right output at this problem.
    """

    problem: Mapping[str, Value]
    within_l2: bool
    near: Mapping[str, float]
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pick:
    """The label of the chosen configuration, and the distance in doublings to the nearest tuned problem on
    the same side of the cache; infinite if there is none."""

    label: str
    distance: float


def words(problem: Mapping[str, Value]) -> dict[str, Value]:
    """Return the non-numeric dimensions of a problem, such as its dtype and whether it is causal."""
    return {name: value for name, value in problem.items() if not _is_number(value)}


def numbers(problem: Mapping[str, Value]) -> dict[str, int]:
    """Return the numeric dimensions of a problem."""
    return {name: cast("int", value) for name, value in problem.items() if _is_number(value)}


def pick(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    size: Sequence[str],
    can: Callable[[str], bool],
    neighbours: int = NEIGHBOURS,
) -> Pick | None:
    """Return the choice for a problem that was not tuned, or None if no configuration qualifies.

    ``size`` are the dimensions that make up the kernel's size. ``can(label)`` says whether a configuration
    can compute the problem. A configuration that failed at a neighbour is excluded. ``neighbours`` is the
    number of nearest problems to use.
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
    """Return the comparable tuned problems with their distances in doublings, the nearest first. Problems on
    the other side of the cache come last; equal distances are ordered by the problems' numbers."""
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
