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
from dataclasses import dataclass
from typing import Any

from ..contract import Gpu, Kernel, Provider
from ..declared import Value
from . import rule
from .rule import Neighbour, Pick, Tuned
from .table import FEWEST, Configuration, TunedRegion
from .tuned_problems import made_parameters

FURTHEST = 4.0
"""The largest ratio to the fastest time that a table keeps for a kernel with steps. A configuration that is
slow at one problem, because its last wave is nearly empty, may be the fastest at the next."""


def has_steps(kernel: Kernel) -> bool:
    """Whether the kernel's providers declare their steps."""
    return any(one.steps is not None for one in kernel.providers)


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
        picked = rule.pick(known, *at, can, neighbours)
        if picked is None or not self._counts(gpu):
            return picked
        comparable = rule.neighbours_of(known, *at, len(known))
        failed = {label for one in comparable[:neighbours] for label in one.tuned.failed}
        times = self.predicted(comparable, problem, gpu, neighbours)
        candidates = sorted(times.keys() & self.configurations.keys() - failed)
        usable = filter(can, candidates)
        return Pick(min(usable, key=times.__getitem__, default=picked.label), picked.distance)

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
        found: dict[str, list[tuple[float, float]]] = {}
        for one in comparable if self._counts(gpu) else ():
            for label, us in self._times(one.tuned, problem, gpu).items():
                if len(several := found.setdefault(label, [])) < neighbours:
                    several.append((one.weight, math.log(us)))
        return {
            label: math.exp(math.fsum(weight * us for weight, us in several) / sum(one for one, _ in several))
            for label, several in found.items()
        }

    def _counts(self, gpu: Gpu | None) -> bool:
        return gpu is not None and self.gpu is not None and has_steps(self.kernel)

    def _times(self, one: Tuned, problem: Any, gpu: Gpu | None) -> dict[str, float]:
        """Return the times that a tuned problem predicts for its configurations and for the baseline, by
        label. Configurations that can't be called any more are left out."""
        found: dict[str, float] = {}
        there = self.kernel.problem(**one.problem)
        if one.baseline_us is not None:
            baseline = self.kernel.provider(self.kernel.baseline)
            growth = self._growth(baseline, None, there, problem, gpu)
            found[self.kernel.baseline] = one.baseline_us * growth
        for label, ratio in one.near.items() if one.us else ():
            assert one.us is not None, "it was asked just before"
            configuration = self.configurations[label]
            provider = self.kernel.provider(configuration.provider)
            try:
                parameters = made_parameters(provider, configuration.parameters)
            except ValueError:
                continue
            found[label] = one.us * ratio * self._growth(provider, parameters, there, problem, gpu)
        return found

    def _growth(
        self, provider: Provider, parameters: Any, there: Any, problem: Any, gpu: Gpu | None
    ) -> float:
        assert provider.steps is not None, "the contract checks that all have steps"
        assert gpu is not None and self.gpu is not None, "steps are counted on a GPU alone"
        return provider.steps(problem, parameters, gpu) / provider.steps(there, parameters, self.gpu)
