"""Measure candidates side by side, in rounds, until their verdicts are decided.

Each round starts a fresh process for each side; it serves all kernels of that side's tree. On a GPU the
processes of the next round start importing while this round still measures. At each problem that is still
open, a round measures all candidates one after the other. Every other round reverses the order (ABBA), so
that a slow drift of the device affects all candidates alike. A round's turns are on disk before the next
round begins, so an interrupted run can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, isfinite, log
from pathlib import Path
from statistics import median
from time import monotonic
from types import MappingProxyType
from typing import Literal

from kernel_pipeline import problems
from kernel_pipeline.execution.extra_readings import Extra
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.records.ceilings import Ceilings, rate
from kernel_pipeline.records.measurement import Outcome, noise_class
from kernel_pipeline.records.point import Point
from kernel_pipeline.statistics.verdicts import (
    Estimate,
    Rule,
    Verdict,
    deviation,
    estimate,
    pooled,
    verdicts,
)

from ..execution.session import Session
from ..points import notation
from ..points.catalog import Entry
from ..store.turns import Turn


@dataclass(frozen=True)
class Side:
    """The files of candidates: a tree with measuring code and kernels, and the kernel's address in it. Sides
    with the same name share a tree, and the tree's kernels share a process."""

    name: str
    root: Path | Root
    where: str


@dataclass(frozen=True)
class Candidate:
    """A point on one side, with its key there."""

    side: Side
    point: Point
    key: str


@dataclass(frozen=True)
class Match:
    """Candidates at one problem; each is compared with the first. ``noise`` is the known noise between equal
    candidates: the standard deviation of the logarithm of a round's ratio. Matches of one ``kind``, a
    ``noise_class``, share their noise."""

    candidates: tuple[Candidate, ...]
    noise: float = 0.0
    kind: str = ""

    def order(self, number: int) -> tuple[Candidate, ...]:
        """Return the candidates in the order of round ``number``."""
        return self.candidates if number % 2 == 0 else self.candidates[::-1]


Fate = Verdict | Literal["failed", "mended"]
"""The end of a match of two candidates: the verdict on the second, or ``failed`` if only the second failed,
or ``mended`` if only the first failed."""


@dataclass(frozen=True)
class RoundLimits:
    """The number of rounds for every match, and the most rounds for a match that stays undecided. No match
    begins after ``until``, a time of ``monotonic``."""

    rounds: int
    most: int
    until: float = inf

    @property
    def are_over(self) -> bool:
        """Whether the time has ended."""
        return monotonic() >= self.until


@dataclass
class Rounds:
    """Matches, with the turns that are known so far.

    ``report`` gets each turn as it comes. ``expect`` gets the number of further turns that are certain to
    come. ``extra`` takes further readings of a candidate after its turn. ``prepare`` gets the matches of each
    round before it begins. An exception of ``report`` or ``prepare`` ends the rounds.
    """

    matches: Sequence[Match]
    limits: RoundLimits
    rule: Rule
    run: str
    report: Callable[[Turn], None]
    expect: Callable[[int], None]
    extra: Callable[[Supervisor, Match, Candidate, Turn], Extra] | None = None
    prepare: Callable[[Sequence[Match]], None] | None = None
    turns: dict[tuple[str, str, int], Turn] = field(default_factory=dict)

    def know(self, turns: Iterable[Turn]) -> None:
        """Take turns of earlier runs; the last turn of a candidate and round is used. Turns without a time,
        or with files that the key lacks, are dropped, so that they are measured again."""
        wanted = {
            (candidate.side.name, candidate.key) for match in self.matches for candidate in match.candidates
        }
        last = {_slot(turn): turn for turn in turns if (turn.side, turn.key) in wanted}
        self.turns |= {
            slot: one for slot, one in last.items() if one.outcome.timing and not one.outcome.unkeyed
        }

    def announce(self, number: int, matches: Sequence[Match]) -> None:
        """Announce the matches that round ``number`` is about to measure."""
        if matches and self.prepare is not None:
            self.prepare(matches)
        if number >= self.limits.rounds:
            self.expect(sum(len(match.candidates) for match in matches))

    def lacks(self) -> int:
        """Return the number of turns that are missing from the rounds of every match."""
        rounds = range(self.limits.rounds)
        return sum(len(match.candidates) for number in rounds for match in self.open(number))

    def open(self, number: int) -> list[Match]:
        """Return the matches that a round would measure: they lack this round and need it."""
        found = self.verdicts()
        return [
            match
            for match in self.matches
            if not self._has(match, number)
            and self.failure(match) is None
            and (
                number < self.limits.rounds
                or any(found[match, candidate] == "undecided" for candidate in match.candidates[1:])
            )
        ]

    def times(self, match: Match) -> dict[Candidate, list[float]]:
        """Return each candidate's medians in microseconds, from the rounds in which all candidates of the
        match have a trusted time."""
        found: dict[Candidate, list[float]] = {candidate: [] for candidate in match.candidates}
        for number in range(self.limits.most):
            if self._has(match, number):
                timings = [self.turns[_place(candidate, number)].timing for candidate in match.candidates]
                if all(timings):
                    for candidate, timing in zip(match.candidates, timings, strict=True):
                        assert timing is not None
                        found[candidate].append(timing.median_us)
        return found

    def estimates(
        self, against: Callable[[Match], Candidate] = lambda match: match.candidates[0]
    ) -> dict[tuple[Match, Candidate], Estimate]:
        """Estimate the ratio of each candidate's time to the time of the candidate that ``against`` names: by
        default the match's first."""
        ratios = self._ratios(against)
        noise = self._noise(ratios)
        return {
            (match, candidate): estimate(some, self.rule, noise[match])
            for (match, candidate), some in ratios.items()
        }

    def noise(self, match: Match) -> float:
        """Return the noise between equal candidates of a match: measured earlier, or estimated from these
        rounds."""
        return self._noise(self._ratios(lambda match: match.candidates[0]))[match]

    def _ratios(self, against: Callable[[Match], Candidate]) -> dict[tuple[Match, Candidate], list[float]]:
        found = {}
        for match in self.matches:
            times, other = self.times(match), against(match)
            for candidate in match.candidates:
                if candidate != other:
                    found[match, candidate] = [
                        own / its for own, its in zip(times[candidate], times[other], strict=True)
                    ]
        return found

    def _noise(self, ratios: Mapping[tuple[Match, Candidate], Sequence[float]]) -> dict[Match, float]:
        """Return each match's noise. Without a measured value, all matches of a kind are pooled, so that two
        rounds decide large differences on a new device."""
        logs: dict[str, list[list[float]]] = {}
        for (match, _), some in ratios.items():
            logs.setdefault(match.kind, []).append([log(one) for one in some])
        kinds = {kind: pooled(some) for kind, some in logs.items()}
        return {match: match.noise or kinds.get(match.kind, 0.0) for match in self.matches}

    def verdicts(
        self, against: Callable[[Match], Candidate] = lambda match: match.candidates[0]
    ) -> dict[tuple[Match, Candidate], Verdict]:
        """Return the verdict on each candidate, except the candidate that ``against`` names."""
        return verdicts(self.estimates(against), self.rule)

    def failure(self, match: Match) -> tuple[Candidate, Outcome] | None:
        """Return the first candidate whose last turn has no usable time, with the outcome of that turn.

        If the turn has a time that can't be compared, the outcome is ``not_judged``. Returns None if every
        candidate's last time is usable.
        """
        return next(iter(self.failures(match).items()), None)

    def failures(self, match: Match) -> dict[Candidate, Outcome]:
        """Return each candidate that fails as in ``failure``."""
        found = {}
        for candidate in match.candidates:
            outcomes = [turn.outcome for turn in self.timings_of(candidate)]
            if outcomes and outcomes[-1].timing is None:
                found[candidate] = outcomes[-1]
            elif outcomes and (why := outcomes[-1].incomparable) is not None:
                found[candidate] = Outcome(status="not_judged", error=why)
        return found

    def fates(self) -> list[Fate]:
        """Return the fate of each match of two candidates. It is undecided if both fail, or if a time can't
        be compared."""
        verdicts, found = self.verdicts(), list[Fate]()
        for match in self.matches:
            b, failures = match.candidates[1], self.failures(match)
            if not failures:
                found.append(verdicts[match, b])
            elif len(failures) == 2 or any(one.status == "not_judged" for one in failures.values()):
                found.append("undecided")
            else:
                found.append("failed" if b in failures else "mended")
        return found

    def timings_of(self, candidate: Candidate) -> list[Turn]:
        """Return a candidate's turns, by round."""
        places = [_place(candidate, number) for number in range(self.limits.most)]
        return [self.turns[place] for place in places if place in self.turns]

    def _has(self, match: Match, number: int) -> bool:
        """Whether one run measured all candidates of a match in this round."""
        turns = [self.turns.get(_place(candidate, number)) for candidate in match.candidates]
        return len({None if turn is None else turn.run for turn in turns} - {None}) == 1 and all(turns)

    def measure(
        self, workers: Mapping[str, Supervisor], match: Match, candidate: Candidate, number: int
    ) -> None:
        """Measure a candidate's turn in round ``number`` by its side's process."""
        worker = workers[candidate.side.name]
        outcome = worker.measure(candidate.side.where, candidate.point)
        if outcome.status == "out_of_memory":
            # The other sides' processes hold memory of earlier problems, and a provider may hold tensors that
            # its worker can't release. New processes hold none.
            for other in workers.values():
                other.close()
            outcome = worker.measure(candidate.side.where, candidate.point)
        turn = Turn(
            side=candidate.side.name,
            key=candidate.key,
            point=candidate.point,
            round=number,
            run=self.run,
            outcome=outcome,
        )
        if self.extra is not None and turn.outcome.timing is not None:
            found = self.extra(worker, match, candidate, turn)
            turn = turn.replace(accuracy=found.accuracy, sustained=found.sustained)
        self.turns[_slot(turn)] = turn
        self.report(turn)


def hold(
    several: Sequence[Rounds], session: Session, launched: Mapping[str, Supervisor] = MappingProxyType({})
) -> None:
    """Measure rounds until each match is decided or has had its most rounds.

    The rounds of several, as of several kernels, are held together: a round measures the matches of all of
    them, by one process for each side. Names of sides mean the same in all. ``launched`` maps names of sides
    to processes that are already launched; the first round that measures a side uses its process.
    """

    def supervisors(matches: Iterable[tuple[Rounds, Match]]) -> dict[str, Supervisor]:
        roots = {one.side.name: one.side.root for _, match in matches for one in match.candidates}
        return {name: session.supervisor(root=roots[name], in_turns=True) for name in sorted(roots)}

    def open_in(number: int, those: Iterable[Rounds]) -> list[tuple[Rounds, Match]]:
        return [(one, match) for one in those for match in one.open(number)]

    for one in several:
        one.expect(one.lacks())
    with ExitStack() as all_rounds:
        ahead = dict(launched)
        for number in range(max((one.limits.most for one in several), default=0)):
            open_now = open_in(number, (one for one in several if number < one.limits.most))
            if not open_now:
                continue
            if any(one.limits.are_over for one in several):
                return
            for one in several:
                one.announce(number, [match for of, match in open_now if of is one])
            with ExitStack() as this_round:
                workers = {name: ahead.pop(name, made) for name, made in supervisors(open_now).items()}
                for worker in workers.values():
                    this_round.enter_context(worker)
                    worker.canary = session.canary
                    worker.start()
                for place, (one, match) in enumerate(open_now):
                    if one.limits.are_over:
                        return
                    if place == len(open_now) // 2 and session.device.kind == "cuda":
                        # Other processes may import torch meanwhile: that does not affect a GPU's times.
                        # Only matches of a round that takes place regardless of this one count.
                        certain = (some for some in several if number + 1 < some.limits.rounds)
                        ahead |= supervisors(open_in(number + 1, certain))
                        for worker in ahead.values():
                            all_rounds.enter_context(worker).launch()
                    for candidate in match.order(number):
                        one.measure(workers, match, candidate, number)


def medians(times: Mapping[Candidate, Sequence[float]]) -> dict[Candidate, float]:
    """Return the median of each candidate's times; a candidate without times is left out."""
    return {candidate: median(some) for candidate, some in times.items() if some}


def _slot(turn: Turn) -> tuple[str, str, int]:
    return turn.side, turn.key, turn.round


def _place(candidate: Candidate, number: int) -> tuple[str, str, int]:
    return candidate.side.name, candidate.key, number


Noise = Mapping[str, tuple[float, int]]
"""Maps a ``noise_class`` to the standard deviation of the logarithms of equal kernels' ratios, and to the
number of points behind it."""


def class_of(entry: Entry, point: Point, ceilings: Ceilings | None) -> str:
    """Return the ``noise_class`` of a point: the resource that bounds its time."""
    kernel = entry.loaded.kernel
    work = kernel.work(problems.make(kernel.problem, point.problem))
    return noise_class(rate(1.0, work, ceilings), 1.0)


def noise(measured_rounds: Rounds, entry: Entry, ceilings: Ceilings | None) -> Noise:
    """Return the noise between rounds, from matches of equal candidates."""
    logs: dict[str, list[list[float]]] = {}
    for match in measured_rounds.matches:
        a, b = match.candidates
        times = measured_rounds.times(match)
        if times[a] and (name := class_of(entry, a.point, ceilings)):
            logs.setdefault(name, []).append(
                [log(its / own) for own, its in zip(times[a], times[b], strict=True)]
            )
    return {name: (deviation(found), len(found)) for name, found in logs.items()}


def sentences(estimates: Sequence[tuple[Estimate, Verdict]], noise: Noise) -> list[str]:
    """Describe a self-test: the verdicts on equal pairs, and the noise."""
    wrong = sum(verdict in ("faster", "slower") for _, verdict in estimates)
    widths = sorted((one.high - one.low) / 2 for one, _ in estimates if isfinite(one.high))
    middle = f"; intervals are ± {widths[len(widths) // 2]:.2%} wide at the median" if widths else ""
    return [
        f"{wrong} of {len(estimates)} equal pairs were called different{middle}.",
        *(
            f"Noise between rounds, {name}-bound kernels: {one:.2%} ({notation.points(count)})."
            for name, (one, count) in noise.items()
        ),
    ]
