"""Search the configurations of one provider at one problem, and measure only some of them.

A ``Study`` proposes the next point, and learns from the times of measured points, beginning with the times in
the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kernel_pipeline.declared import Value
from kernel_pipeline.records.base import Values, digest
from kernel_pipeline.records.point import Point

if TYPE_CHECKING:
    from optuna import Trial

Sampler = Literal["random", "tpe"]
"""The way to choose the next point: in a random order, or by Optuna's tree-structured Parzen estimator."""

FIRST = 5
"""The number of points that ``tpe`` takes from the random order before it estimates anything."""

AT_RANDOM = 4
"""Every fourth point after these comes from the random order, too: the estimator may stay near a
configuration that is good, but not the best."""


class Study:
    """Points of one provider at one problem, each handed out once.

    Args:
        points: the points to choose from, without configurations that do not fit.
        sampler: how the next point is chosen.
        seed: the same seed, points and times give the same choices.
    """

    def __init__(self, points: Sequence[Point], sampler: Sampler, seed: int) -> None:
        self.provider = points[0].provider
        self.size = len(points)
        self.tried = 0
        self.best: tuple[Point, float] | None = None
        self._points = points
        self._sampler = sampler
        self._seed = digest([seed, points[0].to_dict(exclude={"parameters"})])
        order = random.Random(self._seed).sample(range(self.size), self.size)
        self._untried = dict.fromkeys(points[index] for index in order)
        self._pending: dict[Point, None] = {}
        self._told: dict[Point, float | None] = {}
        self._estimate: _Estimate | None = None

    def know(self, point: Point, us: float | None) -> None:
        """Note a point that was measured before: its time, None for a failure."""
        self.begin(point)
        self.tell(point, us)

    def prefer(self, parameters: Iterable[Values]) -> None:
        """Put points with these parameters first in the random order."""
        wanted = list(parameters)
        front = [point for point in self._untried if point.parameters in wanted]
        front.sort(key=lambda point: wanted.index(point.parameters))
        self._untried = dict.fromkeys([*front, *self._untried])

    def fastest(self, count: int) -> list[Point]:
        """Return up to ``count`` of the points whose times are known, the fastest first."""
        timed = {point: us for point, us in self._told.items() if us is not None}
        return sorted(timed, key=timed.__getitem__)[:count]

    def ask(self) -> Point:
        """Return the next point to measure. At least one point must be left."""
        if self._is_random():
            first = next(iter(self._untried))
            self.begin(first)
            return first
        if self._estimate is None:
            # Created late, because importing Optuna takes a third of a second.
            self._estimate = _Estimate(self._points, int(self._seed[:8], 16))
            self._estimate.know(self._told, self._pending)
        chosen = self._estimate.propose(self._untried)
        self._take(chosen)
        return chosen

    def begin(self, point: Point) -> None:
        """Hand out a given point."""
        self._take(point)
        if self._estimate is not None:
            self._estimate.begin(point)

    def tell(self, point: Point, us: float | None) -> None:
        """Note the time of a point that was handed out, None for a failure."""
        del self._pending[point]
        self._told[point] = us
        if self._estimate is not None:
            self._estimate.tell(point, us)
        if us is not None and (self.best is None or us < self.best[1]):
            self.best = point, us

    def _is_random(self) -> bool:
        return (
            self._sampler == "random"
            or self.tried < FIRST
            or self.tried % AT_RANDOM == 0
            or self.best is None
        )

    def _take(self, point: Point) -> None:
        del self._untried[point]
        self._pending[point] = None
        self.tried += 1


class _Estimate:
    """Optuna's study of the points. A value is its index in the sorted values of its parameter.

    A proposed point without a time is treated as slow (the constant liar), so that several proposals in a row
    differ. A failed point is a pruned trial, which ranks below every timed trial.
    """

    def __init__(self, points: Sequence[Point], seed: int) -> None:
        import numpy as np
        import optuna
        from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._levels = _levels(points)
        self._places = {point: self._places_of(point) for point in points}
        self._points = {places: point for point, places in self._places.items()}
        self._distributions: dict[str, BaseDistribution] = {}
        for name, values in self._levels.items():
            last = len(values) - 1
            self._distributions[name] = (
                IntDistribution(0, last) if _is_ordered(values) else CategoricalDistribution(range(last + 1))
            )
        self._is_ordered = np.array([_is_ordered(values) for values in self._levels.values()])
        self._most_steps = np.array([len(values) - 1 for values in self._levels.values()])
        # With so few trials, estimating each parameter by itself finds better points than all together.
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=0, seed=seed, multivariate=False, constant_liar=True
        )
        self._study = optuna.create_study(sampler=sampler)
        self._trials: dict[Point, Trial] = {}

    def know(self, times: Mapping[Point, float | None], pending: Iterable[Point]) -> None:
        """Add the known times as finished trials, and begin trials of the pending points."""
        from optuna.trial import TrialState, create_trial

        for point, us in times.items():
            state = TrialState.PRUNED if us is None else TrialState.COMPLETE
            params = self._parameters(point)
            self._study.add_trial(
                create_trial(state=state, value=us, params=params, distributions=self._distributions)
            )
        for point in pending:
            self.begin(point)

    def begin(self, point: Point) -> None:
        """Begin the trial of a given point."""
        self._study.enqueue_trial(self._parameters(point))
        self._trials[point] = self._study.ask(self._distributions)

    def propose(self, untried: Mapping[Point, None]) -> Point:
        """Begin the trial of the point that Optuna proposes, or of the nearest remaining point if the
        proposal does not fit or was tried. Return the point."""
        from optuna.trial import TrialState

        trial = self._study.ask(self._distributions)
        places = tuple(trial.params[name] for name in self._levels)
        point = self._points.get(places)
        if point is not None and point in untried:
            self._trials[point] = trial
            return point
        self._study.tell(trial, state=TrialState.FAIL)
        nearest = self._nearest(places, untried)
        self.begin(nearest)
        return nearest

    def tell(self, point: Point, us: float | None) -> None:
        """End a trial."""
        from optuna.trial import TrialState

        trial = self._trials.pop(point)
        if us is None:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, us)

    def _nearest(self, places: tuple[int, ...], untried: Iterable[Point]) -> Point:
        """Return the untried point nearest to these indices. Two different words are as
        far apart as the ends of a numeric parameter's range. If several points are equally near, the first in
        the random order is returned."""
        import numpy as np

        left = list(untried)
        steps = np.abs(np.array([self._places[point] for point in left]) - np.array(places))
        distances = np.where(self._is_ordered, steps / self._most_steps, steps > 0).sum(axis=1)
        return left[int(distances.argmin())]

    def _places_of(self, point: Point) -> tuple[int, ...]:
        return tuple(values.index(point.parameters[name]) for name, values in self._levels.items())

    def _parameters(self, point: Point) -> dict[str, Any]:
        return dict(zip(self._levels, self._places[point], strict=True))


def _levels(points: Sequence[Point]) -> dict[str, list[Value]]:
    """Return the sorted values of each parameter in which the points differ."""
    found = {name: sorted({point.parameters[name] for point in points}) for name in points[0].parameters}
    return {name: values for name, values in found.items() if len(values) > 1}


def _is_ordered(values: Sequence[Value]) -> bool:
    """Whether neighbouring values of a parameter are similar: True for numbers, False for words and
    switches."""
    return all(type(value) is int for value in values)
