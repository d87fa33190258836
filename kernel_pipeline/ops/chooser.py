"""Choose the provider and its configuration for a problem by one table."""

from __future__ import annotations

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

from ..contract import Gpu, Kernel, Provider
from ..loading import Loaded
from . import prediction, rule, source, table_files
from .choice import Choice
from .growth import Growth, is_safer
from .table import FEWEST, Configuration, Table, TunedProblem, TunedRegion
from .tuned_problems import (
    compared,
    completed,
    is_within,
    made_parameters,
    takes_inputs,
    tuned_of,
    words_text,
)

RULE = Path(rule.__file__)


class Chooser:
    """Makes one choice by a table. ``how`` is ``sibling`` for another GPU's table, and ``other_dtype`` for
    times in ``dtype``, which is not the problem's; None for the table of the GPU in use."""

    def __init__(
        self,
        found: Table,
        loaded: Loaded,
        problem: Any,
        gpu: Gpu | None,
        file: Path | None = None,
        how: str | None = None,
        warns: bool = True,
        dtype: str | None = None,
    ) -> None:
        self.table = found
        self.file = file
        self.how = how
        self.is_own = how is None
        self.warns = warns and self.is_own
        self.tuned = found.kernels[loaded.name]
        self.loaded = loaded
        self.kernel = loaded.kernel
        self.problem = problem
        self.values = {one.name: getattr(problem, one.name) for one in dataclasses.fields(problem)}
        self.dtype = dtype
        if dtype is not None:
            self.values["dtype"] = dtype
        l2_bytes = found.l2_bytes if self.is_own or gpu is None else gpu.l2_cache
        self.within_l2 = is_within(self.kernel, problem, l2_bytes)
        self.gpu = gpu

    def choose(self) -> Choice:
        """Return the choice by the table of the GPU in use."""
        if self.row is not None:
            if why := self.against(self.row.best):
                return self.fallback(why)
            return self._choice(self.row.best, "exact", "")
        reason = f"{self.loaded.name} was not tuned at this problem."
        if self.trusted is None:
            return self.fallback(reason)
        return self._if_faster(self.trusted.label, "generalised", reason)

    @functools.cached_property
    def row(self) -> TunedProblem | None:
        """The table's measurements at the problem; None if it was not tuned on this GPU."""
        if not self.is_own:
            return None
        rows = compared(self.kernel, self.tuned)
        return next((one for one in rows if completed(self.kernel, one.problem) == self.values), None)

    @property
    def provider(self) -> str | None:
        """The provider of the rule's choice, or None."""
        return None if self.picked is None else self.tuned.configurations[self.picked.label].provider

    def is_faster_than(self, choice: Choice) -> bool:
        """Whether the rule's choice is predicted clearly faster than another GPU's choice, by the table's
        times of both."""
        if self.picked is None:
            return False
        label, other = self.picked.label, self.label_of(choice) or ""
        if {label, other} <= self.predicted.keys():
            return prediction.is_faster_by_steps(self.predicted, label, other)
        return prediction.is_clearly_faster_than(self.around, label, other)

    def label_of(self, choice: Choice) -> str | None:
        """Return the label of a choice in the table; None for one without a label, such as the baseline."""
        for label, one in self.tuned.configurations.items():
            if (one.provider, dict(one.parameters)) == (choice.provider, dict(choice.parameters)):
                return label
        return None

    def lacks_any_of(self, place: tuple[Path, Table] | None) -> bool:
        """Whether another GPU's table names a provider of which this table has no present times."""
        others = None if place is None else place[1].kernels.get(self.loaded.name)
        return others is not None and any(self.lacks(one) for one in others.sources)

    def lacks(self, provider: str | None) -> str | None:
        """Return the reason why the table has no present times of a provider, as a sentence, or None."""
        if provider is None:
            return None
        name = f"{self.loaded.name}/{provider}"
        if provider not in self.tuned.measured:
            return f"{name} was not measured on {self.table.gpu}."
        if provider in self.tuned.sources and not self.is_present(provider):
            return f"{name} was edited since it was tuned on {self.table.gpu}; sweep and tune again."
        return None

    @property
    def distance(self) -> float:
        """The distance in doublings to the nearest tuned problem on the same side of the cache; infinite if
        there is none."""
        same_side = (one.distance for one in self.comparable if one.tuned.within_l2 == self.within_l2)
        return min(same_side, default=math.inf)

    def nearer_in(self, other: Chooser, choice: Choice) -> str | None:
        """Return the reason why another GPU's table may choose in place of a choice between this table's
        problems that the rule is not trusted with, as a sentence: it has a nearer problem in this dtype, and
        times of the chosen configuration, and its own was nowhere wrong on this GPU. None otherwise."""
        if choice.how in ("exact", "generalised") or other.dtype is not None:
            return None
        if other.distance >= self.distance or other.label_of(choice) is None or other.lacks(choice.provider):
            return None
        if other.picked is None or any(other.picked.label in one.failed for one in self.tuned.problems):
            return None
        return f"The table of {other.table.gpu} has a nearer problem than that of {self.table.gpu}."

    @functools.cached_property
    def known(self) -> list[rule.Tuned]:
        """The table's problems. If our fastest configurations at all of the nearest don't fit, as for wider
        rows than theirs, the other problems."""
        every = tuned_of(self.kernel, self.tuned)
        at = self.values, self.within_l2, rule.scales(self.kernel)
        if not all(self._fits_nowhere(one.tuned) for one in rule.neighbours_of(every, *at)):
            return every
        return [one for one in every if not self._fits_nowhere(one)] or every

    def _fits_nowhere(self, one: rule.Tuned) -> bool:
        """Whether a tuned problem has fast configurations of ours, and none fits the problem here. One of an
        edited provider may fit."""
        ours = [self.tuned.configurations[label] for label in one.near if not self._is_baseline(label)]
        return bool(ours) and all(
            not self._unusable(each.provider) and self._unfit(self.kernel.provider(each.provider), each)
            for each in ours
        )

    @functools.cached_property
    def comparable(self) -> list[rule.Neighbour]:
        """The table's problems that differ only in numbers, the nearest first."""
        return rule.neighbours_of(
            self.known, self.values, self.within_l2, rule.scales(self.kernel), len(self.known)
        )

    @property
    def around(self) -> list[rule.Neighbour]:
        """The tuned problems that the rule uses."""
        return self.comparable[: rule.NEIGHBOURS]

    @property
    def growth(self) -> Growth:
        """The growth of the table's times to other problems."""
        return Growth(self.kernel, self.tuned.configurations, self.table.properties)

    @functools.cached_property
    def picked(self) -> rule.Pick | None:
        """The rule's choice; None without neighbours, and if the table's regrets come from another version
        of the rule."""
        if self.is_own and self.table.rule != rule_digest():
            return None
        return self.picked_by(rule.NEIGHBOURS)

    def picked_by(self, neighbours: int) -> rule.Pick | None:
        """Return the rule's choice by this many neighbours; None without neighbours."""
        at = self.values, self.within_l2, self.problem, self.gpu
        return self.growth.pick(self.known, *at, lambda label: self.against(label) is None, neighbours)

    @property
    def trusted(self) -> rule.Pick | None:
        """The rule's choice if the rule is trusted at the problem, else None."""
        region, picked = self.region, self.picked
        if region is None or region.distance is None or picked is None or picked.distance > region.distance:
            return None
        return picked

    @functools.cached_property
    def predicted(self) -> dict[str, float]:
        """The predicted times by label in microseconds, of a kernel whose providers have steps."""
        return self.growth.predicted(self.comparable, self.problem, self.gpu)

    @property
    def ranked(self) -> list[str]:
        """The labels of configurations in the order of the rule or of predicted times, the best first."""
        return self.growth.ranked(self.comparable, self.problem, self.gpu) or rule.ranked(self.around)

    def by_steps(self, label: str) -> float | None:
        """Return how many times as fast as the baseline a configuration is predicted to be; None without
        steps."""
        return prediction.speedup_of(self.predicted, self.kernel, label)

    def predicted_us(self, label: str) -> float | None:
        """Return the predicted time of a configuration in microseconds; None if it is unknown."""
        if self.predicted:
            return self.predicted.get(label)
        return prediction.predicted_us(self.kernel, self.comparable, self.problem, label)

    @property
    def region(self) -> TunedRegion | None:
        """The region that the problem belongs to, or None."""
        return next((one for one in self.tuned.regions if one.within_l2 == self.within_l2), None)

    def fallback(self, reason: str) -> Choice:
        """Return the choice if the rule is not trusted: the safest of the default configurations that fit,
        the baseline, and the rule's choice, by the 90th percentile of their regret; or the rule's choice if
        it is clearly faster by times predicted from steps, or clearly faster than a default by the
        neighbours. In place of the baseline it is the rule's choice if this is faster at all neighbours that
        count; or if callers can't get the baseline and no default fits."""
        region = self.region
        known = {} if region is None else region.fallback.get(words_text(self.values), {})
        safest = next(
            (label for label in known if self._is_baseline(label) or self.against(label) is None), None
        )
        if region is not None and safest is not None and self.picked is not None:
            by_rule = self.picked.label
            is_faster = prediction.is_faster_by_steps(self.predicted, by_rule, safest)
            if is_faster or is_safer(self.kernel, region, known[safest]):
                return self._if_faster(by_rule, "guessed", reason)
        choice = baseline(self.kernel, reason)
        if safest is not None and not self._is_baseline(safest):
            choice = self._if_faster(safest, "default", reason, slowest=prediction.SLOWEST)
        if self.picked is None:
            return choice
        if choice.how == "default":
            # With steps the predicted times have decided.
            is_known = len(self.around) >= FEWEST and not self.predicted
            if is_known and prediction.is_clearly_faster_than(self.around, self.picked.label, safest):
                return self._choice(self.picked.label, "guessed", reason)
            return choice
        is_only = safest is None and not self.has_baseline
        by_steps = self.by_steps(self.picked.label)
        if is_only or prediction.is_faster_all_around(self.around, self.picked.label, by_steps):
            return self._choice(self.picked.label, "guessed", reason)
        return choice

    def choose_elsewhere(self, reason: str) -> Choice | None:
        """Return the choice by times of another GPU or dtype, by which no problem counts as tuned; None if no
        configuration is predicted clearly faster than the baseline. ``reason`` says why the GPU's own table
        does not choose."""
        if self.picked is None or self._is_baseline(self.picked.label):
            return None
        of_dtype = "" if self.dtype is None else f" in {self.dtype}"
        reason = f"{reason} The times{of_dtype} of {self.table.gpu} are used."
        made = self._if_faster(self.picked.label, self.how or "sibling", reason, prediction.ELSEWHERE_MARGIN)
        return made if made.how == self.how else None

    def _if_faster(
        self, label: str, how: str, reason: str, margin: float = prediction.MARGIN, slowest: float = 0.0
    ) -> Choice:
        """Return the choice of a configuration if it is called in place of the baseline, else the
        baseline."""
        if self.is_called(label, margin, slowest):
            return self._choice(label, how, reason)
        provider = self.tuned.configurations[label].provider
        return baseline(
            self.kernel, f"{reason} {provider} is not predicted clearly faster than {self.kernel.baseline}."
        )

    def is_called(self, label: str, margin: float, slowest: float) -> bool:
        """Whether a configuration is called in place of the baseline: it is predicted clearly faster, or no
        baseline can be called, or it is the baseline."""
        return (
            self._is_baseline(label)
            or not self.has_baseline
            or prediction.is_clearly_faster(self.around, label, margin, slowest, self.by_steps(label))
        )

    @property
    def has_baseline(self) -> bool:
        """Whether callers can get a right baseline. One that takes inputs in another form they can't get, and
        what torch computes instead is far slower. One that failed at all problems that the rule uses is wrong
        in this dtype."""
        name = self.kernel.baseline
        fails = [any(label.split()[0] == name for label in one.tuned.failed) for one in self.around]
        return takes_inputs(self.kernel.provider(name)) and not (fails and all(fails))

    def _is_baseline(self, label: str) -> bool:
        return self.tuned.configurations[label].provider == self.kernel.baseline

    def against(self, label: str) -> str | None:
        """Return the reason why a configuration can't be called for this problem, as a sentence, or None.
        Warn if its provider can't be used at all."""
        chosen = self.tuned.configurations[label]
        if why := self._unusable(chosen.provider):
            if self.warns:
                table_files.warn(why)
            return why
        return self._unfit(self.kernel.provider(chosen.provider), chosen)

    def _unusable(self, provider: str) -> str | None:
        """Return the reason why no configuration of a provider can be called for any problem."""
        name = f"{self.loaded.name}/{provider}"
        declared = {one.name: one for one in self.kernel.providers}.get(provider)
        if declared is None:
            return f"{name} was tuned on {self.table.gpu} and no longer exists; tune again."
        if not declared.is_installed:
            return (
                f"{name} was tuned on {self.table.gpu} and needs {declared.requires}, which is not installed."
            )
        return self.lacks(provider)

    def is_present(self, provider: str) -> bool:
        """Whether the table's times of a provider are those of its present source."""
        return self.tuned.sources.get(provider) == _source(self.loaded, provider)

    def _unfit(self, provider: Provider, chosen: Configuration) -> str | None:
        name = f"{self.loaded.name}/{chosen.provider}"
        if ("cpu" if self.gpu is None else "cuda") not in provider.devices:
            return f"{name} does not run on this device."
        if self.gpu is not None and (why := provider.runs_on(self.gpu)):
            return f"{name} {why}."
        try:
            made = made_parameters(provider, chosen.parameters)
        except ValueError as error:
            return f"{name} no longer takes its tuned parameters ({error}); sweep and tune again."
        why = provider.fits(self.problem, made, self.gpu)
        return None if why is None else f"{name} does not fit: {why}."

    def _choice(self, label: str, how: str, reason: str) -> Choice:
        chosen = self.tuned.configurations[label]
        return Choice(chosen.provider, dict(chosen.parameters), how, reason)


@functools.cache
def rule_digest() -> str:
    """Return the digest of the rule's code."""
    return source.of_file(RULE)


def baseline(kernel: Kernel, reason: str) -> Choice:
    """Return the choice of the kernel's baseline."""
    provider = kernel.provider(kernel.baseline)
    declared = provider.variables()
    parameters = {name: one.default for name, one in declared.items() if one.default is not None}
    return Choice(provider.name, parameters, "torch", reason)


def _source(loaded: Loaded, provider: str) -> str:
    """Return the digest of a provider's files; empty if they can't be read or there is no such provider."""
    try:
        return source.digest(loaded, provider)
    except (KeyError, OSError, SyntaxError):
        return ""
