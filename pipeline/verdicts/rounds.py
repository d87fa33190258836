"""Rivals measured side by side, in rounds, until it is known which is the faster.

A round has a fresh process for each side, which serves all kernels of its tree. On a GPU that of the next
round imports what it needs while the turns of this one last. At each problem that is still open a round
measures all rivals one after the other, every other round in the opposite order (ABBA), so that a device that
grows slower does so for all. What a round gave is on the disk before the next begins: stopped in any way, the
contest goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import isfinite, log
from pathlib import Path
from statistics import median
from types import MappingProxyType

from pipeline.execution.extra_readings import Extra
from pipeline.execution.supervisor import Supervisor
from pipeline.machine.device import Device
from pipeline.points import notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary, Ceilings, rate
from pipeline.store.record import Outcome, noise_class
from pipeline.store.turns import Turn
from pipeline.timing.settings import TimingSettings
from pipeline.verdicts.intervals import Estimate, Rule, Verdict, deviation, estimate, pooled, verdicts


@dataclass(frozen=True)
class Side:
    """Whose files rivals are of: a tree with measuring code and kernels, and which of its kernels. A name
    means one tree, whose kernels share a process."""

    name: str
    root: Path
    where: str


@dataclass(frozen=True)
class Rival:
    """A point as one side measures it, with its key there."""

    side: Side
    point: Point
    key: str


@dataclass(frozen=True)
class Match:
    """Rivals at one problem, of which each is compared with the first. ``noise`` is what is known of equal
    rivals: the standard deviation of the logarithm of a round's ratio. ``kind`` is the ``noise_class`` whose
    matches share their noise."""

    rivals: tuple[Rival, ...]
    noise: float = 0.0
    kind: str = ""

    def order(self, number: int) -> tuple[Rival, ...]:
        """The order in which a round measures them."""
        return self.rivals if number % 2 == 0 else self.rivals[::-1]


@dataclass(frozen=True)
class RoundLimits:
    """How many rounds every match has, and how many one has at most that is still undecided."""

    rounds: int
    most: int


@dataclass
class Contest:
    """Matches and what is known of them so far.

    ``report`` gets each turn as it comes; what it raises ends the contest. ``expect`` is told how many turns
    are known to come, beyond those that it was told of. ``extra`` asks more of a rival that has just had a
    turn. ``prepare`` gets the matches of each round before it begins; what it raises ends the contest, too.
    """

    matches: Sequence[Match]
    limits: RoundLimits
    rule: Rule
    run: str
    report: Callable[[Turn], None]
    expect: Callable[[int], None]
    extra: Callable[[Supervisor, Match, Rival, Turn], Extra] | None = None
    prepare: Callable[[Sequence[Match]], None] | None = None
    turns: dict[tuple[str, str, int], Turn] = field(default_factory=dict)

    def know(self, turns: Iterable[Turn]) -> None:
        """Take turns of earlier runs; of the same rival in the same round the last counts. What had no time
        is tried again."""
        wanted = {(rival.side.name, rival.key) for match in self.matches for rival in match.rivals}
        last = {_slot(turn): turn for turn in turns if (turn.side, turn.key) in wanted}
        self.turns |= {slot: turn for slot, turn in last.items() if turn.outcome.timing is not None}

    def hold(
        self,
        device: Device,
        settings: TimingSettings,
        seed: int,
        timeout_s: float,
        canary: Canary | None,
        launched: Mapping[str, Supervisor] = MappingProxyType({}),
    ) -> None:
        """Hold rounds until each match is decided, or has had as many as it may have. Whose processes are
        ``launched`` already, by the names of sides, measures in the first of them."""

        def supervisors(matches: Iterable[Match]) -> dict[str, Supervisor]:
            sides = {(rival.side.name, rival.side.root) for match in matches for rival in match.rivals}
            return {
                name: Supervisor(device, settings, seed, timeout_s, root, in_turns=True)
                for name, root in sorted(sides)
            }

        self.expect(self.lacks())
        with ExitStack() as all_rounds:
            ahead = dict(launched)
            for number in range(self.limits.most):
                matches = self.open(number)
                if not matches:
                    continue
                if self.prepare is not None:
                    self.prepare(matches)
                if number >= self.limits.rounds:
                    self.expect(sum(len(match.rivals) for match in matches))
                with ExitStack() as this_round:
                    workers = {name: ahead.pop(name, made) for name, made in supervisors(matches).items()}
                    for worker in workers.values():
                        this_round.enter_context(worker)
                        worker.canary = canary
                        worker.start()
                    for place, match in enumerate(matches):
                        if place == len(matches) // 2 and device.kind == "cuda":
                            # A GPU's times don't feel that other processes import torch meanwhile.
                            ahead |= supervisors(self._certain(number + 1))
                            for worker in ahead.values():
                                all_rounds.enter_context(worker).launch()
                        for rival in match.order(number):
                            self._measure(workers, match, rival, number)

    def _certain(self, number: int) -> list[Match]:
        """The matches of a round that is held whatever the one before it shows."""
        return self.open(number) if number < self.limits.rounds else []

    def lacks(self) -> int:
        """How many turns the rounds that every match has are short of."""
        rounds = range(self.limits.rounds)
        return sum(len(match.rivals) for number in rounds for match in self.open(number))

    def open(self, number: int) -> list[Match]:
        """The matches that a round would measure: those that have not had it, and need it."""
        found = self.verdicts()
        return [
            match
            for match in self.matches
            if not self._has(match, number)
            and self.failure(match) is None
            and (
                number < self.limits.rounds
                or any(found[match, rival] == "undecided" for rival in match.rivals[1:])
            )
        ]

    def times(self, match: Match) -> dict[Rival, list[float]]:
        """Medians in microseconds of each rival, of the rounds in which all have one that is to be
        trusted."""
        found: dict[Rival, list[float]] = {rival: [] for rival in match.rivals}
        for number in range(self.limits.most):
            if self._has(match, number):
                timings = [self.turns[_place(rival, number)].timing for rival in match.rivals]
                if all(timings):
                    for rival, timing in zip(match.rivals, timings, strict=True):
                        assert timing is not None
                        found[rival].append(timing.median_us)
        return found

    def estimates(
        self, against: Callable[[Match], Rival] = lambda match: match.rivals[0]
    ) -> dict[tuple[Match, Rival], Estimate]:
        """The ratio of each rival's time to that of the one that it is compared with, its match's first."""
        ratios = self._ratios(against)
        noise = self._noise(ratios)
        return {
            (match, rival): estimate(some, self.rule, noise[match]) for (match, rival), some in ratios.items()
        }

    def noise(self, match: Match) -> float:
        """What is known of equal rivals' noise there: measured before, or told by the contest's rounds."""
        return self._noise(self._ratios(lambda match: match.rivals[0]))[match]

    def _ratios(self, against: Callable[[Match], Rival]) -> dict[tuple[Match, Rival], list[float]]:
        found = {}
        for match in self.matches:
            times, other = self.times(match), against(match)
            for rival in match.rivals:
                if rival != other:
                    found[match, rival] = [
                        own / its for own, its in zip(times[rival], times[other], strict=True)
                    ]
        return found

    def _noise(self, ratios: Mapping[tuple[Match, Rival], Sequence[float]]) -> dict[Match, float]:
        """Where none was measured on this device, all matches of a kind tell it together: on a device that is
        seen for the first time two rounds decide what lies far apart."""
        logs: dict[str, list[list[float]]] = {}
        for (match, _), some in ratios.items():
            logs.setdefault(match.kind, []).append([log(one) for one in some])
        kinds = {kind: pooled(some) for kind, some in logs.items()}
        return {match: match.noise or kinds.get(match.kind, 0.0) for match in self.matches}

    def verdicts(
        self, against: Callable[[Match], Rival] = lambda match: match.rivals[0]
    ) -> dict[tuple[Match, Rival], Verdict]:
        """What is known of each rival but the one that it is compared with."""
        return verdicts(self.estimates(against), self.rule)

    def failure(self, match: Match) -> tuple[Rival, Outcome] | None:
        """The first rival that had no time in the match's last round, or one that says nothing, with what it
        had instead."""
        for rival in match.rivals:
            outcomes = [turn.outcome for turn in self.of(rival)]
            if outcomes and outcomes[-1].timing is None:
                return rival, outcomes[-1]
            if outcomes and (why := outcomes[-1].incomparable) is not None:
                return rival, Outcome(status="not_judged", error=why)
        return None

    def of(self, rival: Rival) -> list[Turn]:
        """A rival's turns, by round."""
        places = [_place(rival, number) for number in range(self.limits.most)]
        return [self.turns[place] for place in places if place in self.turns]

    def _has(self, match: Match, number: int) -> bool:
        """Whether all rivals were measured one after the other in that round."""
        turns = [self.turns.get(_place(rival, number)) for rival in match.rivals]
        return len({None if turn is None else turn.run for turn in turns} - {None}) == 1 and all(turns)

    def _measure(self, workers: Mapping[str, Supervisor], match: Match, rival: Rival, number: int) -> None:
        worker = workers[rival.side.name]
        outcome = worker.measure(rival.side.where, rival.point)
        if outcome.status == "out_of_memory" and len(workers) > 1:
            # The other sides' processes hold what they had of a problem until they are asked for another.
            for other in workers.values():
                other.release()
            outcome = worker.measure(rival.side.where, rival.point)
        turn = Turn(
            side=rival.side.name,
            key=rival.key,
            point=rival.point,
            round=number,
            run=self.run,
            outcome=outcome,
        )
        if self.extra is not None and turn.outcome.timing is not None:
            found = self.extra(worker, match, rival, turn)
            turn = turn.model_copy(update={"accuracy": found.accuracy, "sustained": found.sustained})
        self.turns[_slot(turn)] = turn
        self.report(turn)


def medians(times: Mapping[Rival, Sequence[float]]) -> dict[Rival, float]:
    """The middle one of each rival's times; none for a rival without any."""
    return {rival: median(some) for rival, some in times.items() if some}


def _slot(turn: Turn) -> tuple[str, str, int]:
    return turn.side, turn.key, turn.round


def _place(rival: Rival, number: int) -> tuple[str, str, int]:
    return rival.side.name, rival.key, number


Noise = Mapping[str, tuple[float, int]]
"""By ``noise_class`` the standard deviation of the logarithms of equal kernels' ratios, and of how many
points."""


def class_of(entry: Entry, point: Point, ceilings: Ceilings | None) -> str:
    """The ``noise_class`` of a point: what its time is limited by."""
    kernel = entry.loaded.kernel
    work = kernel.work(problems.make(kernel.problem, point.problem))
    return noise_class(rate(1.0, work, ceilings), 1.0)


def noise(contest: Contest, entry: Entry, ceilings: Ceilings | None) -> Noise:
    """The noise of a contest whose matches are of equals."""
    logs: dict[str, list[list[float]]] = {}
    for match in contest.matches:
        a, b = match.rivals
        times = contest.times(match)
        if times[a] and (name := class_of(entry, a.point, ceilings)):
            logs.setdefault(name, []).append(
                [log(its / own) for own, its in zip(times[a], times[b], strict=True)]
            )
    return {name: (deviation(found), len(found)) for name, found in logs.items()}


def sentences(estimates: Sequence[tuple[Estimate, Verdict]], noise: Noise) -> list[str]:
    """What to say of equal pairs, by their ratios and verdicts."""
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
