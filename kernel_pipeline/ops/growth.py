"""Predict what the configurations of tuned problems take at another problem, from their steps.

The time of a product in tiles does not grow evenly with the problem: a grid of 133 blocks takes a GPU with
132 multiprocessors twice as long as a grid of 132. A provider may declare the steps of a launch
(``Provider.steps``). Then the time of a configuration at a problem is predicted from each of the nearest
problems at which it was measured, scaled by the ratio of its steps. The fastest by these predictions is
chosen. Without steps the rule chooses by the ratios that were measured at its neighbours. docs/tuned.md has
the regrets of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..contract import Gpu, Kernel
from ..declared import Value
from . import rule
from .rule import Neighbour, Pick, Tuned
from .table import FEWEST, Configuration, TunedRegion
from .tuned_problems import has_steps, made_parameters

FURTHEST = 4.0
"""The largest ratio to the fastest time that a table keeps, in place of ``rule.MOST``, for a kernel with
steps. A configuration that is slow at one problem, because its last wave is nearly empty, may be the fastest
at the next."""


BEYOND = 2.0
"""A configuration is chosen if it was measured no more than this many doublings farther away than the nearest
problem. A time of attention with a single query, which waits for memory, says little of a prompt. Of limits
of 1, 2, 3 and none, this one has the least 90th percentile of regret, or the same, in all replays but one."""


def is_safer(kernel: Kernel, region: TunedRegion, p90: float) -> bool:
    """Whether the regret of the choices in a region is lower than a candidate's, by their 90th percentiles.
    Ratios at few problems say too little; with steps the time at each problem is predicted."""
    enough = region.problems >= FEWEST or has_steps(kernel)
    return enough and region.regret_p90 is not None and region.regret_p90 < p90


def furthest(kernel: Kernel) -> float:
    """Return the largest ratio to the fastest time that a table keeps."""
    return FURTHEST if has_steps(kernel) else rule.MOST


@dataclass(frozen=True)
class Growth:
    """The growth of times from the tuned problems of a kernel to others. ``configurations`` are by label,
    ``gpu`` is the GPU on which they were measured; None for a CPU."""

    kernel: Kernel
    configurations: Mapping[str, Configuration]
    gpu: Gpu | None

    def pick(
        self,
        known: Sequence[Tuned],
        values: Mapping[str, Value],
        within_l2: bool,
        problem: Any,
        gpu: Gpu | None,
        can: Callable[[str], bool],
        neighbours: int = rule.NEIGHBOURS,
    ) -> Pick | None:
        """Return the choice for a problem that was not tuned, or None if no configuration qualifies.

        ``problem`` is the problem, and ``values`` are its values, perhaps in another dtype. ``gpu`` is the
        GPU in use, which may be another one. The other arguments are those of ``rule.pick``."""
        at = values, within_l2, rule.scales(self.kernel)
        comparable = rule.neighbours_of(known, *at, len(known))
        ranked = self.ranked(comparable, problem, gpu, neighbours)
        if not ranked:
            return rule.pick(known, *at, can, neighbours)
        label = next(filter(can, ranked), None)
        same_side = (one.distance for one in comparable if one.tuned.within_l2 == within_l2)
        return None if label is None else Pick(label, min(same_side, default=math.inf))

    def ranked(
        self,
        comparable: Sequence[Neighbour],
        problem: Any,
        gpu: Gpu | None,
        neighbours: int = rule.NEIGHBOURS,
    ) -> list[str]:
        """Return the labels of configurations by their predicted times, the shortest first; none without
        steps. Left out are the baseline, configurations that failed at one of the nearest problems, and those
        that were measured only much farther away than others."""
        times = self.predicted(comparable, problem, gpu, neighbours)
        failed = {label for one in comparable[:neighbours] for label in one.tuned.failed}
        ours = {label for label, one in self.configurations.items() if one.provider != self.kernel.baseline}
        limit = min((one.distance for one in comparable), default=0.0) + BEYOND
        known = {label for one in comparable if one.distance <= limit for label in one.tuned.near}
        return sorted(times.keys() & known & ours - failed, key=lambda label: (times[label], label))

    def predicted(
        self,
        comparable: Sequence[Neighbour],
        problem: Any,
        gpu: Gpu | None,
        neighbours: int = rule.NEIGHBOURS,
    ) -> dict[str, float]:
        """Return the predicted times of configurations in microseconds, by label: the weighted geometric mean
        of the predictions from the nearest problems with a time. ``comparable`` are tuned problems, the
        nearest first. Without steps no time is predicted."""
        if gpu is None or self.gpu is None or not has_steps(self.kernel):
            return {}
        launches = self._launches()
        here = {label: steps(problem, parameters, gpu) for label, (steps, parameters) in launches.items()}
        found: dict[str, list[tuple[float, float]]] = {}
        for one in comparable:
            there = self.kernel.problem(**one.tuned.problem)
            for label, us in _times(one.tuned, self.kernel.baseline).items():
                several = found.setdefault(label, [])
                if label in launches and len(several) < neighbours:
                    steps, parameters = launches[label]
                    before = steps(there, parameters, self.gpu)
                    if before > 0 and here[label] > 0:
                        several.append((one.weight, math.log(us * here[label] / before)))
        return {
            label: math.exp(math.fsum(weight * us for weight, us in several) / sum(one for one, _ in several))
            for label, several in found.items()
            if several
        }

    def _launches(self) -> dict[str, tuple[Callable[[Any, Any, Gpu], float], Any]]:
        """Return the steps and the parameters of the configurations that can still be called and of the
        baseline, by label."""
        providers = {one.name: one for one in self.kernel.providers}
        wanted = {**self.configurations, self.kernel.baseline: Configuration(self.kernel.baseline, {})}
        found = {}
        for label, one in wanted.items():
            provider = providers.get(one.provider)
            if provider is not None and provider.steps is not None:
                with suppress(ValueError):
                    found[label] = provider.steps, made_parameters(provider, one.parameters)
        return found


def _times(one: Tuned, baseline: str) -> dict[str, float]:
    """Return the times at a tuned problem in microseconds, by label."""
    known = {} if one.us is None else {label: one.us * ratio for label, ratio in one.near.items()}
    return known if one.baseline_us is None else known | {baseline: one.baseline_us}
