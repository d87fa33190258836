"""Find workloads of other sizes than those given, at which the problem's own code has an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_pipeline.judging.facts import ProblemFacts
from kernel_pipeline.judging.folder import GIVEN, SIGNED, at
from kernel_pipeline.judging.formats import prime_below, resized, tiny
from kernel_pipeline.records.base import Values

Change = Callable[[int], int]

CHANGES: tuple[Change, ...] = (tiny, prime_below)
"""The changes of sizes, of which the first makes the smaller workloads."""

DISTRIBUTIONS = (GIVEN, SIGNED)
"""The distributions of inputs that are tried at other sizes."""


@dataclass
class OtherSizes:
    """Changes the sizes ``names`` of a workload. ``probed`` returns the facts of problems.

    ``skipped`` has the reason, as a clause, for each change that is left out, by its sizes.
    """

    workload: Values
    names: Sequence[str]
    probed: Callable[[Sequence[Values]], Mapping[Values, ProblemFacts]]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> list[Values]:
        """The problems that are probed first, in which all sizes change."""
        return _problems([resized(self.workload, self.names, change) for change in CHANGES])

    def workloads(self) -> list[Values]:
        """Return the workloads, the smaller ones first."""
        return [one for one in dict.fromkeys(map(self._fitting, CHANGES)) if one != self.workload]

    def _fitting(self, change: Change) -> Values:
        """Return a workload that fits: with all changes, or else with those that fit alone. One size may have
        to divide another."""
        together = resized(self.workload, self.names, change)
        if self._why_not(together) is None:
            return together
        alone = {name: resized(self.workload, [name], change) for name in self.names}
        self.probed(_problems(alone.values()))  # at once, since a request may start a process
        names = [name for name, one in alone.items() if self._why_not(one) is None]
        several = resized(self.workload, names, change)
        unfit = [several, *(one for one in alone.values() if self._why_not(one) is not None)]
        whys = {one: self._why_not(one) for one in unfit}
        self.skipped |= {changed(one, self.workload): why for one, why in whys.items() if why is not None}
        return self.workload if whys[several] is not None else several

    def _why_not(self, workload: Values) -> str | None:
        problem = at(GIVEN, workload)
        return self.probed([problem])[problem].skipped


def _problems(workloads: Iterable[Values]) -> list[Values]:
    return [at(name, one) for one in workloads for name in DISTRIBUTIONS]


def changed(problem: Values, workload: Values) -> str:
    """Return the values of a problem that differ from a workload's, as words."""
    return " ".join(f"{name}={value}" for name, value in problem.items() if value != workload.get(name))


def is_within(workload: Values, other: Values) -> bool:
    """Whether no size of a workload is larger than the other's."""
    sizes = ((size, other[name]) for name, size in workload.items())
    return all(size <= most for size, most in sizes if type(size) is int and type(most) is int)
