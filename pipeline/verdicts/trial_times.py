"""The times of correct submissions beside the problem's own code, in rounds, and the verdicts with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from kernel_pipeline.execution.protocol import TimerName
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.judging.imported import COMPILED, DISTRIBUTION, REFERENCE
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from kernel_pipeline.statistics.verdicts import FEWEST_ROUNDS, Rule

from .. import ROOT
from ..execution.session import Session
from ..store import commit
from ..store.turns import Turn
from . import judged
from .judged import Judged, Speed, WorkloadTimes
from .rounds import Candidate, Match, RoundLimits, Rounds, Side, hold, medians

OWN_TIMER: TimerName = "do_bench"
"""The timer that is nearest to those of KernelBench's and KernelBot's judges."""


def by_own_judge(worker: Supervisor, where: str, point: Point) -> float | None:
    """Return the mean time of a call in microseconds, about as the judges of KernelBench and KernelBot take
    it: by events around each call, after the L2 cache was overwritten. Unlike them, ``do_bench`` does not
    wait for the GPU between calls. Nothing audits this time. Returns None without a GPU, and if calls fail.
    """
    if worker.device.kind == "cpu":
        return None
    timed = worker.readings(where, point, (OWN_TIMER,), 1, is_stamped=False).timed.get(OWN_TIMER, [])
    return fmean(timed[0].timing.samples_us) if timed else None


@dataclass(frozen=True)
class TrialTimes:
    """Rounds in which each submission has turns of others beside its own: of the problem's own code, of the
    same code under torch.compile if that ``is_compiled``, and of the ``best`` known submission if there is
    one. ``problems`` are the timed problems by workload, ``own_us`` the times in the way of the format's own
    judge."""

    folder: Path
    session: Session
    limits: RoundLimits
    rule: Rule
    problems: Mapping[Values, Values]
    is_compiled: bool
    best: str | None
    own_us: Mapping[Point, float | None]
    _matches: dict[tuple[str, Values], Match] = field(default_factory=dict)

    def rounds(self, names: Sequence[str], report: Callable[[Turn], None]) -> Rounds:
        """Hold the rounds of submissions. ``report`` gets each turn."""
        side = Side("tree", ROOT, str(self.folder))
        others = [REFERENCE, *([COMPILED] if self.is_compiled else []), *([self.best] if self.best else [])]
        for name in names:
            each_round = [*(one for one in others if one != name), name]
            for number, (workload, problem) in enumerate(self.problems.items()):
                points = [Point(kernel=self.folder.name, provider=one, problem=problem) for one in each_round]
                self._matches[name, workload] = Match(
                    tuple(Candidate(side, point, f"{name}/{number}/{point.provider}") for point in points)
                )
        matches = tuple(self._matches.values())
        made = Rounds(matches, self.limits, self.rule, commit.new_run(), report, lambda turns: None)
        hold([made], self.session)
        return made

    def verdict(self, one: Judged, name: str, rounds: Rounds) -> Judged:
        """Return the verdict on a correct submission with its times, or with the failure that the rounds
        found."""
        found: list[WorkloadTimes] = []
        for workload in self.problems:
            match = self._matches[name, workload]
            own, times = match.candidates[-1], rounds.times(match)
            if (failed := rounds.failure(match)) is not None:
                candidate, outcome = failed
                if candidate is own and outcome.status != "not_judged":
                    said, reason = judged.of_failure(outcome, needs_gpu=False)
                    return one.replace(verdict=said, reason=reason)
                which = "it" if candidate is own else candidate.point.provider
                return one.replace(verdict="can't be judged", reason=f"{which} has no time: {outcome.error}")
            if (count := len(times[own])) < FEWEST_ROUNDS:
                return one.replace(verdict="can't be judged", reason=judged.BUSY.format(count))
            found.append(self._timing(workload, match, rounds))
        timed_at = str(next(iter(self.problems.values()))[DISTRIBUTION])
        return judged.with_times(one, found, timed_at, self.rule.margin)

    def _timing(self, workload: Values, match: Match, rounds: Rounds) -> WorkloadTimes:
        """Return the times of a submission at a workload, and its speed-ups."""
        times, own = rounds.times(match), match.candidates[-1]
        middle = medians(times)
        others = {one.point.provider: place for place, one in enumerate(match.candidates[:-1])}

        def us(provider: str | None) -> float | None:
            return None if provider not in others else middle[match.candidates[others[provider]]]

        def host_us(candidate: Candidate) -> float | None:
            each = [turn.outcome.host_us for turn in rounds.timings_of(candidate)]
            read = [us for us in each if us is not None]
            return median(read) if read else None

        def speed(provider: str | None) -> Speed | None:
            if provider not in others:
                return None
            place = others[provider]
            one = rounds.estimates(lambda each: each.candidates[place])[match, own]
            decided = rounds.verdicts(lambda each: each.candidates[place])[match, own]
            return Speed(times=1 / one.ratio, low=1 / one.high, high=1 / one.low, decided=decided)

        reference, reference_us = speed(REFERENCE), us(REFERENCE)
        assert reference is not None and reference_us is not None, "it is in each match"
        return WorkloadTimes(
            workload=workload,
            speed=reference,
            over_compiled=speed(COMPILED),
            over_best=speed(self.best),
            us=middle[own],
            reference_us=reference_us,
            compiled_us=us(COMPILED),
            best_us=us(self.best),
            host_us=host_us(own),
            reference_host_us=host_us(match.candidates[0]),
            own_us=self.own_us.get(own.point),
            reference_own_us=self.own_us.get(match.candidates[0].point),
            rounds=len(times[own]),
        )
