"""Make rows of the rounds of finals: each finalist's time, its rate, and its ratio to the fastest own
provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from kernel_pipeline.records.ceilings import Ceilings, rate
from kernel_pipeline.records.fields import TIME_DIGITS, rounded
from kernel_pipeline.records.measurement import Origin, Sustained
from kernel_pipeline.statistics.verdicts import Estimate, Verdict, estimate, verdicts

from ..points.catalog import Entry
from ..store.finals import Against, Final
from .finalists import Finalists, microseconds
from .rounds import Candidate, Match, Rounds, medians


@dataclass(frozen=True)
class Ranking:
    """Rounds between finalists. ``origin`` returns the origin of a kernel's rows."""

    measured_rounds: Rounds
    finalists: Mapping[Match, Finalists]
    ceilings: Ceilings
    origin: Callable[[Entry], Origin]

    def rows(self) -> dict[Match, list[Final]]:
        """Return the finals of each match that has rounds, each compared with the fastest own provider."""
        measured_rounds = self.measured_rounds
        middles = {match: medians(measured_rounds.times(match)) for match in measured_rounds.matches}
        held = {match: middle for match, middle in middles.items() if middle}
        own = {match: self._fastest_of_ours(match, middle) for match, middle in held.items()}
        against = {match: candidate or match.candidates[0] for match, candidate in own.items()}
        estimates = measured_rounds.estimates(lambda match: against.get(match, match.candidates[0]))
        decided = measured_rounds.verdicts(lambda match: against.get(match, match.candidates[0]))
        found: dict[Match, list[Final]] = {}
        for match, middle in held.items():
            ours = own[match]
            beside = {
                candidate: _against(ours, estimates[match, candidate], decided[match, candidate])
                for candidate in middle
                if ours is not None and (match, candidate) in estimates
            }
            found[match] = [
                self._burst(match, candidate, us, beside.get(candidate)) for candidate, us in middle.items()
            ]
            found[match] += self._sustained(match, ours)
        return found

    def _fastest_of_ours(self, match: Match, middle: Mapping[Candidate, float]) -> Candidate | None:
        ours = [candidate for candidate in middle if self.finalists[match].by(candidate) == "own"]
        return min(ours, key=middle.__getitem__, default=None)

    def _burst(self, match: Match, candidate: Candidate, us: float, beside: Against | None) -> Final:
        """Return the burst final of a candidate; ``us`` is the median of its rounds."""
        finalists, row = self.finalists[match], self.finalists[match].rows[candidate]
        us = rounded(us, TIME_DIGITS)
        accuracies = (
            turn.accuracy for turn in self.measured_rounds.timings_of(candidate) if turn.accuracy is not None
        )
        return Final(
            key=candidate.key,
            point=candidate.point,
            workload=row.workload,
            by=finalists.by(candidate),
            rounds_us=tuple(self.measured_rounds.times(match)[candidate]),
            median_us=us,
            swept_us=microseconds(row),
            headline=finalists.entry.headline(row.workload),
            rate=rate(us, finalists.work, self.ceilings),
            against=beside,
            dispatched=finalists.how(candidate),
            power="burst",
            accuracy=next(accuracies, None),
            parts=row.parts,
            origin=self.origin(finalists.entry),
        )

    def _sustained(self, match: Match, own: Candidate | None) -> list[Final]:
        """Return the finals of candidates that were also timed after seconds of work. Each is compared with
        ``own`` if ``own`` has such a time, too."""
        measured_rounds, finalists = self.measured_rounds, self.finalists[match]
        held = {
            candidate: {
                turn.round: turn.sustained for turn in measured_rounds.timings_of(candidate) if turn.sustained
            }
            for candidate in match.candidates
        }
        beside = self._sustained_beside(match, own, held)
        # Rate them by the ceiling that this GPU sustains, if it was measured.
        kept = self.ceilings.sustained_tflops or self.ceilings.matmul_tflops
        ceilings = self.ceilings.replace(matmul_tflops=kept)
        found = []
        for candidate, rounds in held.items():
            if not rounds:
                continue
            row, times = finalists.rows[candidate], tuple(one.median_us for one in rounds.values())
            last = list(rounds.values())[-1]
            us = rounded(median(times), TIME_DIGITS)
            found.append(
                Final(
                    key=candidate.key,
                    point=candidate.point,
                    workload=row.workload,
                    by=finalists.by(candidate),
                    rounds_us=times,
                    median_us=us,
                    swept_us=microseconds(row),
                    headline=finalists.entry.headline(row.workload),
                    rate=rate(us, finalists.work, ceilings),
                    against=beside.get(candidate),
                    power="sustained",
                    sm_clock_mhz=last.sm_clock_mhz,
                    joules=last.joules,
                    parts=row.parts,
                    origin=self.origin(finalists.entry),
                )
            )
        return found

    def _sustained_beside(
        self, match: Match, own: Candidate | None, held: Mapping[Candidate, Mapping[int, Sustained]]
    ) -> dict[Candidate, Against]:
        """Compare sustained times with the times of ``own``, over the rounds that both have."""
        if own is None:
            return {}
        rule = self.measured_rounds.rule
        ratios: dict[Candidate, Estimate] = {}
        for candidate, rounds in held.items():
            if candidate != own and (both := sorted(rounds.keys() & held[own].keys())):
                pairs = [rounds[number].median_us / held[own][number].median_us for number in both]
                ratios[candidate] = estimate(pairs, rule, self.measured_rounds.noise(match))
        decided = verdicts(ratios, rule)
        return {candidate: _against(own, one, decided[candidate]) for candidate, one in ratios.items()}


def _against(other: Candidate, one: Estimate, verdict: Verdict) -> Against:
    high = one.high if one.rounds > 1 else None
    return Against(point=other.point, ratio=one.ratio, low=one.low, high=high, verdict=verdict)
