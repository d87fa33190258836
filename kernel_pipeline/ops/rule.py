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

from ..contract import Kernel
from ..declared import Value

NEIGHBOURS = 6
"""The number of nearest tuned problems that the rule uses."""

MOST = 1.25
"""The largest slowdown that the rule distinguishes: a slower configuration is treated as not measured."""

OTHER_NUMBER = 0.25
"""The distance of a doubling in a dimension that is not part of the kernel's size. In a dimension of the size
it is 1."""

OF_SET = 4.0
"""The same in a dimension of which the kernel lists all values, as attention's head_dim: tiles exist for some
of them only."""

NEAREST = 0.05
"""Added to each distance, so that a very near problem does not decide alone."""

POWER = 3
"""The exponent of the distance in a neighbour's weight."""


@dataclass(frozen=True)
class Tuned:
    """A measured problem.

    ``near`` maps the labels of the configurations that took at most ``MOST`` times as long as the best to
    that ratio. ``failed`` are the labels of configurations without a right output at this problem. ``us`` is
    the time in microseconds of a configuration with the ratio 1, and ``baseline_us`` the baseline's time;
    None if it is unknown.
    """

    problem: Mapping[str, Value]
    within_l2: bool
    near: Mapping[str, float]
    failed: frozenset[str] = frozenset()
    us: float | None = None
    baseline_us: float | None = None


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A tuned problem near another problem, and their distance in doublings."""

    tuned: Tuned
    distance: float

    @property
    def weight(self) -> float:
        """The weight of this problem in a mean over the neighbours."""
        return (self.distance + NEAREST) ** -POWER


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


def scales(kernel: Kernel) -> dict[str, float]:
    """Return the distance of a doubling in each of a kernel's dimensions."""
    return {
        name: 1.0 if name in kernel.size else OF_SET if one.values else OTHER_NUMBER
        for name, one in kernel.dimensions().items()
    }


def pick(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    scales: Mapping[str, float],
    can: Callable[[str], bool],
    neighbours: int = NEIGHBOURS,
) -> Pick | None:
    """Return the choice for a problem that was not tuned, or None if no configuration qualifies.

    ``scales`` are the distances of a doubling in each dimension. ``can(label)`` says whether a configuration
    can compute the problem. A configuration that failed at a neighbour is excluded. ``neighbours`` is the
    number of nearest problems to use.
    """
    around = neighbours_of(tuned, problem, within_l2, scales, neighbours)
    away = min((one.distance for one in around if one.tuned.within_l2 == within_l2), default=math.inf)
    return next((Pick(label, away) for label in ranked(around) if can(label)), None)


def ranked(around: Sequence[Neighbour]) -> list[str]:
    """Return the labels of the configurations that did not fail at a neighbour, the best first."""
    failed = {label for one in around for label in one.tuned.failed}
    candidates = {label for one in around for label in one.tuned.near} - failed
    found = []
    for label in candidates:
        losses = [math.log(min(one.tuned.near.get(label, MOST), MOST)) for one in around]
        weighted = math.fsum(one.weight * loss for one, loss in zip(around, losses, strict=True))
        found.append((weighted, label))
    return [label for _, label in sorted(found)]


def neighbours_of(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    scales: Mapping[str, float],
    neighbours: int = NEIGHBOURS,
) -> list[Neighbour]:
    """Return the nearest comparable tuned problems, the nearest first. Problems on the other side of the
    cache come last; equal distances are ordered by the problems' numbers."""
    found = []
    for one in tuned:
        if words(one.problem) == words(problem) and one.problem.keys() == problem.keys():
            values = sorted(numbers(one.problem).items())
            order = one.within_l2 != within_l2, _distance(one.problem, problem, scales), values
            found.append((order, one))
    found.sort(key=lambda each: each[0])
    return [Neighbour(one, order[1]) for order, one in found[:neighbours]]


def _distance(one: Mapping[str, Value], other: Mapping[str, Value], scales: Mapping[str, float]) -> float:
    here, there = numbers(one), numbers(other)
    return math.hypot(*(scales[name] * math.log2(max(1, here[name]) / max(1, there[name])) for name in here))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
