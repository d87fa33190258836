"""Which configuration a problem is given that nobody has measured: the rule between tuned problems.

It looks at the four tuned problems that are nearest, by the logarithms of their numbers, and takes the
configuration that was best there: the mean of how many times as long it took as the best one, weighted by
nearness, and a tenth of the worst of them. A problem whose data fit the L2 cache is far from one whose data do
not, since what limits them is another thing. Beyond the cache only problems of the same words (dtype and the
like) count; within it the others do, too, a little farther away: a launch costs the same in each.

The same code says at run time what is called, and in a table what the rule's regret is, found by leaving each
tuned problem out. Its constants had the least 90th percentile of the regret among those that were tried on the
ledgers of softmax, rmsnorm, layernorm, gelu and square on an H200 (docs/tuned.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernels.contract import Value

NEIGHBOURS = 4
"""Tuned problems that the rule looks at."""

MOST = 1.25
"""A configuration that took more than this many times the best's time is as bad as one that was not
measured."""

OTHER_NUMBER = 0.5
"""What a doubling counts of a dimension that no size stands for; of the others it counts 1."""

OTHER_SIDE = 4.0
"""Square of the distance between the two sides of the L2 cache."""

OTHER_WORDS = 0.5
"""Square of the distance between problems of other words."""

NEAREST = 0.05
"""What is added to a distance, so that the nearest does not decide all alone."""

POWER = 4
"""Of the distance, by which a neighbour's weight falls."""

WORST = 0.1
"""The weight of the worst of the neighbours."""


@dataclass(frozen=True)
class Tuned:
    """A problem that was measured.

    ``near`` are the configurations that took at most ``MOST`` times as long as the best, by their labels, with
    that ratio; ``failed`` those that gave no right output here.
    """

    problem: Mapping[str, Value]
    within_l2: bool
    near: Mapping[str, float]
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pick:
    """A configuration for a problem, and its agreement: the geometric mean of how many times as long it took
    as the best of each neighbour."""

    label: str
    agreement: float


def words(problem: Mapping[str, Value]) -> dict[str, Value]:
    """What of a problem is no number: its dtype, whether it is causal."""
    return {name: value for name, value in problem.items() if not _is_number(value)}


def pick(
    tuned: Iterable[Tuned],
    problem: Mapping[str, Value],
    within_l2: bool,
    size: Sequence[str],
    can: Callable[[str], bool],
) -> Pick | None:
    """The configuration for a problem that is not among the tuned ones; None where there is nothing to go by.

    ``size`` are the dimensions that a size stands for. ``can`` says of a label whether it may be taken: whether
    it fits the problem. What was not measured at any problem of the same words is never taken.
    """
    everything = list(tuned)
    own_words = words(problem)
    known = {label for one in everything if words(one.problem) == own_words for label in one.near}
    neighbours = _nearest(everything, problem, within_l2, size)
    failed = {label for _, one in neighbours for label in one.failed}
    candidates = {label for _, one in neighbours for label in one.near} & known - failed
    weights = [(distance + NEAREST) ** -POWER for distance, _ in neighbours]
    best: tuple[float, str, float] | None = None
    for label in sorted(candidates):
        losses = [math.log(min(one.near.get(label, MOST), MOST)) for _, one in neighbours]
        weighted = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)
        score = weighted + WORST * max(losses), label
        if (best is None or score < best[:2]) and can(label):
            best = *score, math.exp(sum(losses) / len(losses))
    return None if best is None else Pick(best[1], best[2])


def _nearest(
    tuned: Iterable[Tuned], problem: Mapping[str, Value], within_l2: bool, size: Sequence[str]
) -> list[tuple[float, Tuned]]:
    """The nearest tuned problems with their distances; at the same distance in the order of their values."""
    found = []
    for one in tuned:
        distance = _distance(one, problem, within_l2, size)
        if distance is not None:
            found.append((distance, sorted((name, str(value)) for name, value in one.problem.items()), one))
    found.sort(key=lambda each: each[:2])
    return [(distance, one) for distance, _, one in found[:NEIGHBOURS]]


def _distance(
    one: Tuned, problem: Mapping[str, Value], within_l2: bool, size: Sequence[str]
) -> float | None:
    """How far a tuned problem is, in doublings; None where it tells nothing of the other."""
    square = 0.0
    if words(one.problem) != words(problem):
        if not within_l2 or words(one.problem).keys() != words(problem).keys():
            return None
        square += OTHER_WORDS
    if one.within_l2 != within_l2:
        square += OTHER_SIDE
    for name, value in problem.items():
        if _is_number(value):
            other = one.problem.get(name)
            if not _is_number(other) or int(other) < 1 or int(value) < 1:  # type: ignore[arg-type]
                return None
            doublings = math.log2(int(other) / int(value))  # type: ignore[arg-type]
            square += ((1.0 if name in size else OTHER_NUMBER) * doublings) ** 2
    return math.sqrt(square)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
