"""Compare the configuration that callers of ``kernel_pipeline.ops`` get at drawn problems with torch's and
other projects' providers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, cast

from kernel_pipeline.contract import Provider
from kernel_pipeline.ops import tuned
from kernel_pipeline.ops.choice import Choice
from kernel_pipeline.problems import identity_of
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.statistics.verdicts import Estimate, Verdict, verdicts

from .. import ROOT
from ..keys.identity import Identity
from ..points import notation
from ..points.catalog import Entry
from ..points.plan import Target, unavailable
from ..store.finals import How, written_by
from ..store.held_out import HeldOutProblem, Other
from ..store.retry import is_too_short, may_pass
from . import rounds
from .finalists import TREE
from .rounds import Candidate, Match, Rounds, Side, medians

Judged = Mapping[tuple[Match, Candidate], tuple[Estimate, Verdict]]
"""The ratio of each other provider's time to that of the called configuration, and the verdict on it."""


def judge(measured: Rounds) -> Judged:
    """Compare all rounds so far. The false discoveries of all verdicts are held together."""
    estimates = measured.estimates()
    found = verdicts(estimates, measured.rule)
    return {key: (estimate, found[key]) for key, estimate in estimates.items()}


@dataclass(frozen=True)
class Drawn:
    """A drawn problem of a kernel. The match's first candidate is the called configuration; without others it
    is not measured. ``failed`` has the reasons of other providers that failed, which the match lacks."""

    entry: Entry
    choice: Choice
    match: Match
    failed: Mapping[str, str] = field(default_factory=dict)

    def without_failures(self, last: Mapping[str, Outcome]) -> Drawn:
        """Return the problem without the other providers whose last outcome, which ``last`` has by key, gives
        no time to compare, now or later. The called configuration is compared with the rest."""
        failures = {
            one: why
            for one in self.match.candidates[1:]
            if (outcome := last.get(one.key)) is not None and (why := _failure(outcome)) is not None
        }
        if not failures:
            return self
        left = tuple(one for one in self.match.candidates if one not in failures)
        failed = {**self.failed, **{one.point.provider: why for one, why in failures.items()}}
        return replace(self, match=replace(self.match, candidates=left), failed=failed)

    @property
    def called(self) -> Candidate:
        """The configuration that callers get."""
        return self.match.candidates[0]

    def result(self, measured: Rounds, judged: Judged) -> HeldOutProblem:
        """Return the result of the rounds so far, which ``judged`` compares."""
        point = self.called.point
        failed = {
            one.point.provider: outcome.error or outcome.status
            for one, outcome in measured.failures(self.match).items()
        }
        found = HeldOutProblem(
            problem=point.problem,
            called=notation.label(point),
            provider=point.provider,
            how=cast(How, self.choice.how),
            failed={**self.failed, **failed},
        )
        times = measured.times(self.match)
        middle = medians(times)
        if self.called not in middle:
            return found
        others = []
        for one in self.match.candidates[1:]:
            estimate, verdict = judged[self.match, one]
            others.append(
                Other(
                    provider=one.point.provider,
                    us=middle[one],
                    ratio=estimate.ratio,
                    low=estimate.low,
                    high=estimate.high if isfinite(estimate.high) else None,
                    verdict=verdict,
                )
            )
        return found.replace(us=middle[self.called], rounds=len(times[self.called]), others=tuple(others))


def drawn(
    entry: Entry, problem: Any, slug: str, target: Target, identity: Identity, known: Ceilings
) -> Drawn:
    """Return a drawn problem with its candidates: the called configuration first, then the default
    configuration of each provider by torch or another project that fits. Compiled torch, which compiles for
    each problem, is left out; so are torch's separate operators on a GPU."""
    choice = tuned.choose(entry.loaded, problem, target.gpu, slug if target.kind == "cuda" else None)
    values = identity_of(problem)
    called = Point(
        kernel=entry.name, provider=choice.provider, problem=values, parameters=Values(choice.parameters)
    )
    points = dict.fromkeys([called, *_others(entry, problem, values, target)])
    side = Side(TREE, ROOT, entry.loaded.where)
    candidates = tuple(Candidate(side, point, identity.key(point)) for point in points)
    kind = rounds.class_of(entry, called, known)
    return Drawn(entry, choice, Match(candidates, known.noise.get(kind, 0.0), kind))


def _others(entry: Entry, problem: Any, values: Values, target: Target) -> Iterator[Point]:
    for provider in entry.loaded.kernel.providers:
        if (
            written_by(provider) not in ("torch", "peer")
            or provider.compiled
            or (provider.name in entry.config.unfused and target.kind == "cuda")
            or unavailable(provider, target)
        ):
            continue
        parameters = _defaults(provider)
        made = None if provider.parameters is None else provider.parameters(**parameters)
        if provider.fits(problem, made, target.gpu) is None:
            yield Point(
                kernel=entry.name, provider=provider.name, problem=values, parameters=Values(parameters)
            )


def _defaults(provider: Provider) -> dict[str, Any]:
    return {name: one.default for name, one in provider.variables().items()}


def _failure(outcome: Outcome) -> str | None:
    """Return why a provider gives no time to compare at a problem; None if another round may give one."""
    if outcome.timing is not None:
        return outcome.incomparable
    is_tried_again = may_pass(outcome) and not is_too_short(outcome)
    return None if is_tried_again else outcome.error or outcome.status
