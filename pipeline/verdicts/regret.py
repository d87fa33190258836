"""The regret of the rule that chooses between tuned problems, found by leave-one-out.

A problem is left out together with all problems of the same numbers, whatever their words: for a new shape
there are no times in any dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernel_pipeline import problems
from kernel_pipeline.ops import rule
from kernel_pipeline.ops.growth import Growth
from kernel_pipeline.ops.table import FEWEST, TunedRegion
from kernel_pipeline.ops.tuned_problems import words_text
from kernel_pipeline.records.base import Values

TRUSTED = 0.05
"""The rule is trusted if the 90th percentile of its regret is at most this."""

ROUNDED = 4
"""Decimal places of a regret."""


@dataclass(frozen=True)
class Times:
    """A tuned problem, the microseconds of all its configurations by label, and the labels of the providers'
    default configurations."""

    tuned: rule.Tuned
    us: Mapping[str, float]
    defaults: frozenset[str]

    def regret(self, label: str) -> float:
        """Return the extra time of a configuration over the fastest, as a share of the fastest time."""
        return self.us[label] / min(self.us.values()) - 1


@dataclass(frozen=True)
class Left:
    """A problem that was left out, and the rule's choice for it."""

    times: Times
    pick: rule.Pick

    @property
    def regret(self) -> float:
        """The regret of the choice."""
        return self.times.regret(self.pick.label)


def leave_out(some: Sequence[Times], growth: Growth) -> list[Left]:
    """Return the rule's choice at each problem, as if its shape had not been measured. A configuration
    without a time at the problem is skipped, as if it did not fit."""
    found = []
    for one in some:
        values, within_l2 = one.tuned.problem, one.tuned.within_l2
        here = rule.numbers(values)
        others = [other.tuned for other in some if rule.numbers(other.tuned.problem) != here]
        problem = problems.make(growth.kernel.problem, Values(values))
        picked = growth.pick(others, values, within_l2, problem, growth.gpu, one.us.__contains__)
        if picked is not None:
            found.append(Left(one, picked))
    return found


def regions(some: Sequence[Times], growth: Growth) -> list[TunedRegion]:
    """Describe the rule's regret on each side of the L2 cache's size."""
    left = leave_out(some, growth)
    found = []
    for within_l2 in (True, False):
        here = [one for one in some if one.tuned.within_l2 == within_l2]
        if here:
            chosen = [one for one in left if one.times.tuned.within_l2 == within_l2]
            found.append(region(within_l2, here, chosen, growth.kernel.baseline))
    return found


def region(within_l2: bool, here: Sequence[Times], left: Sequence[Left], baseline: str) -> TunedRegion:
    """Describe the rule's regret on one side of the L2 cache's size. ``here`` are the problems there,
    ``left`` the choices at problems that were left out."""
    regrets = [one.regret for one in left]
    trusted = up_to(left)
    fallback = {
        words: safest([one for one in here if words_text(one.tuned.problem) == words], baseline)
        for words in dict.fromkeys(words_text(one.tuned.problem) for one in here)
    }
    return TunedRegion(
        within_l2=within_l2,
        problems=len(left),
        regret_median=round(quantile(regrets, 0.5), ROUNDED) if regrets else None,
        regret_p90=round(quantile(regrets, 0.9), ROUNDED) if regrets else None,
        distance=max(one.pick.distance for one in trusted) if trusted else None,
        generalised=len(trusted),
        generalised_p90=round(quantile([one.regret for one in trusted], 0.9), ROUNDED) if trusted else None,
        fallback=fallback,
    )


def up_to(left: Sequence[Left]) -> list[Left]:
    """Return the choices for which the rule is trusted: the choices nearest to tuned problems, up to the
    distance at which the 90th percentile of their regret exceeds ``TRUSTED``. Returns no choices if they are
    fewer than ``FEWEST``."""
    ordered = sorted((one for one in left if one.pick.distance < math.inf), key=lambda one: one.pick.distance)
    for count in range(len(ordered), FEWEST - 1, -1):
        some = ordered[:count]
        # Choices at the same distance are trusted together or not at all.
        is_whole = count == len(ordered) or some[-1].pick.distance < ordered[count].pick.distance
        if is_whole and quantile([one.regret for one in some], 0.9) <= TRUSTED:
            return some
    return []


def safest(some: Sequence[Times], baseline: str) -> dict[str, float]:
    """Return the providers' default configurations by the 90th percentile of their regret, the least first,
    down to the baseline. A default is included if it was measured at half of the problems or at ``FEWEST`` of
    them."""
    regrets: dict[str, list[float]] = {}
    for one in some:
        for label in one.defaults:
            regrets.setdefault(label, []).append(one.regret(label))
    enough = min(FEWEST, len(some) / 2)
    ranked = sorted((quantile(those, 0.9), label) for label, those in regrets.items() if len(those) >= enough)
    providers = [label.partition(" ")[0] for _, label in ranked]
    last = providers.index(baseline) if baseline in providers else len(ranked)
    return {label: round(p90, ROUNDED) for p90, label in ranked[: last + 1]}


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value below which this share of the values lies, interpolated linearly."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
