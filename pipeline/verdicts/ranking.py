"""What the rounds of finals say, as rows: each finalist's time, its rate, and how it stands beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from pipeline.points.catalog import Entry
from pipeline.points.limits import TIME_DIGITS, rounded
from pipeline.store.ceilings import Ceilings, rate
from pipeline.store.finals import Against, Final
from pipeline.store.record import Origin
from pipeline.store.turns import Sustained
from pipeline.verdicts.finalists import Finalists, microseconds
from pipeline.verdicts.intervals import Estimate, Verdict, estimate, verdicts
from pipeline.verdicts.rounds import Contest, Match, Rival, medians


@dataclass(frozen=True)
class Standings:
    """A contest whose matches are of finalists. ``origin`` says where a kernel's rows come from."""

    contest: Contest
    finalists: Mapping[Match, Finalists]
    ceilings: Ceilings
    origin: Callable[[Entry], Origin]

    def rows(self) -> dict[Match, list[Final]]:
        """The finals of each match that has rounds, each against the fastest of ours."""
        contest = self.contest
        middles = {match: medians(contest.times(match)) for match in contest.matches}
        held = {match: middle for match, middle in middles.items() if middle}
        own = {match: self._fastest_of_ours(match, middle) for match, middle in held.items()}
        against = {match: rival or match.rivals[0] for match, rival in own.items()}
        estimates = contest.estimates(lambda match: against.get(match, match.rivals[0]))
        decided = contest.verdicts(lambda match: against.get(match, match.rivals[0]))
        found: dict[Match, list[Final]] = {}
        for match, middle in held.items():
            ours = own[match]
            beside = {
                rival: _against(ours, estimates[match, rival], decided[match, rival])
                for rival in middle
                if ours is not None and (match, rival) in estimates
            }
            found[match] = [self._burst(match, rival, us, beside.get(rival)) for rival, us in middle.items()]
            found[match] += self._sustained(match, ours)
        return found

    def _fastest_of_ours(self, match: Match, middle: Mapping[Rival, float]) -> Rival | None:
        ours = [rival for rival in middle if self.finalists[match].by(rival) == "own"]
        return min(ours, key=middle.__getitem__, default=None)

    def _burst(self, match: Match, rival: Rival, us: float, beside: Against | None) -> Final:
        """The final of a rival by the times of its rounds, of which ``us`` is the median."""
        finalists, row = self.finalists[match], self.finalists[match].rows[rival]
        us = rounded(us, TIME_DIGITS)
        accuracies = (turn.accuracy for turn in self.contest.of(rival) if turn.accuracy is not None)
        return Final(
            key=rival.key,
            point=rival.point,
            workload=row.workload,
            by=finalists.by(rival),
            rounds_us=tuple(self.contest.times(match)[rival]),
            median_us=us,
            swept_us=microseconds(row),
            headline=finalists.entry.headline(row.workload),
            rate=rate(us, finalists.work, self.ceilings),
            against=beside,
            dispatched=finalists.how(rival),
            power="burst",
            accuracy=next(accuracies, None),
            parts=row.parts,
            origin=self.origin(finalists.entry),
        )

    def _sustained(self, match: Match, own: Rival | None) -> list[Final]:
        """The finals of those that were also timed after seconds of work, against ours if that was."""
        contest, finalists = self.contest, self.finalists[match]
        held = {
            rival: {turn.round: turn.sustained for turn in contest.of(rival) if turn.sustained}
            for rival in match.rivals
        }
        beside = self._sustained_beside(match, own, held)
        # By the rate that this GPU keeps up, where it was measured.
        kept = self.ceilings.sustained_tflops or self.ceilings.matmul_tflops
        ceilings = self.ceilings.model_copy(update={"matmul_tflops": kept})
        found = []
        for rival, rounds in held.items():
            if not rounds:
                continue
            row, times = finalists.rows[rival], tuple(one.median_us for one in rounds.values())
            last = list(rounds.values())[-1]
            us = rounded(median(times), TIME_DIGITS)
            found.append(
                Final(
                    key=rival.key,
                    point=rival.point,
                    workload=row.workload,
                    by=finalists.by(rival),
                    rounds_us=times,
                    median_us=us,
                    swept_us=microseconds(row),
                    headline=finalists.entry.headline(row.workload),
                    rate=rate(us, finalists.work, ceilings),
                    against=beside.get(rival),
                    power="sustained",
                    sm_clock_mhz=last.sm_clock_mhz,
                    joules=last.joules,
                    parts=row.parts,
                    origin=self.origin(finalists.entry),
                )
            )
        return found

    def _sustained_beside(
        self, match: Match, own: Rival | None, held: Mapping[Rival, Mapping[int, Sustained]]
    ) -> dict[Rival, Against]:
        """How sustained times stand beside ours, by the rounds that both have."""
        if own is None:
            return {}
        rule = self.contest.rule
        ratios: dict[Rival, Estimate] = {}
        for rival, rounds in held.items():
            if rival != own and (both := sorted(rounds.keys() & held[own].keys())):
                pairs = [rounds[number].median_us / held[own][number].median_us for number in both]
                ratios[rival] = estimate(pairs, rule, self.contest.noise(match))
        decided = verdicts(ratios, rule)
        return {rival: _against(own, one, decided[rival]) for rival, one in ratios.items()}


def _against(other: Rival, one: Estimate, verdict: Verdict) -> Against:
    high = one.high if one.rounds > 1 else None
    return Against(point=other.point, ratio=one.ratio, low=one.low, high=high, verdict=verdict)
