"""Stage ``finals``: the best configuration of each provider, measured again side by side.

    python -m pipeline.finals kernel=softmax
    python -m pipeline.finals kernel=[gelu,softmax] preset=standard
    python -m pipeline.finals output=results remeasure=true

Of many configurations the best of a sweep is a lucky one, too, and rows of a ledger may be of several days.
Here each problem's providers are measured one after the other, in fresh processes, round after round; one
process serves the problems of all kernels. Stopped in any way, the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import geometric_mean, median
from time import monotonic

from rich import box
from rich.table import Table

import kernels
from kernels.contract import Work
from pipeline import ROOT, UserError
from pipeline.command.options import FinalsConfig
from pipeline.command.run import console, run_stage
from pipeline.execution import calibration
from pipeline.execution.finalist import Extra
from pipeline.execution.identity import Identity
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.machine.lock import DeviceLock
from pipeline.points import catalog, choice, notation, problems
from pipeline.points.catalog import Entry
from pipeline.points.frozen import Values
from pipeline.points.plan import Plan, Target, plan
from pipeline.reporting.numbers import number, percent, print_wide
from pipeline.reporting.progress import Progress
from pipeline.store import commit, finals, results, turns
from pipeline.store.ceilings import Ceilings, rate
from pipeline.store.finals import Against, Final, written_by
from pipeline.store.record import Measurement, Origin, noise_class
from pipeline.store.turns import Turn
from pipeline.toolchain import extension
from pipeline.toolchain.extension import Place
from pipeline.verdicts.contest import Contest, Limits, Match, Rival, Side, medians
from pipeline.verdicts.statistics import Estimate, Rule, Verdict, estimate, verdicts

WORK_S = 2.0
"""Of the same work before a sustained time: so long an H200's power limit takes to hold its clock down."""

LONG_US = 100.0
"""What is shorter is seldom all that a GPU does for seconds."""

warn = partial(console.print, style="yellow", highlight=False, soft_wrap=True)
say = partial(console.print, highlight=False, soft_wrap=True)


def run(config: FinalsConfig) -> None:
    """Hold the finals and print them."""
    chosen = device.resolve(config.device)
    entries = [catalog.find(name) for name in config.kernel or kernels.names()]
    with DeviceLock(chosen, config.wait_s, warn):
        stage = Finals(config, chosen, entries)
        stage.measure_ceilings()
        stage.choose()
        try:
            stage.hold()
        finally:
            stage.show()


@dataclass(frozen=True)
class Finalists:
    """The best of each provider at one problem of a kernel, by rivals; ours first, the fastest of them."""

    entry: Entry
    match: Match
    rows: Mapping[Rival, Measurement]


class Finals:
    """One run of finals on one device."""

    def __init__(self, config: FinalsConfig, chosen: device.Device, entries: Sequence[Entry]) -> None:
        self.config = config
        self.device = chosen
        self.slug = chosen.slug
        self.entries = entries
        self.environment = fingerprint(chosen)
        self.output = results.folder_for(config.output, chosen.kind)
        self.run = commit.new_run()
        self.command = commit.command_line("finals")
        self.begin = monotonic()
        self.ceilings: Ceilings | None = None
        self.finalists: dict[Match, Finalists] = {}
        self.contest: Contest | None = None
        self.left_out: list[str] = []
        for entry in entries:
            results.asked_for(finals.path(config.output, entry.name, self.slug))

    def measure_ceilings(self) -> None:
        """Find the ceilings, and what is known of equal kernels here."""
        config = self.config
        repository = results.folder_for(ROOT / "results", self.device.kind)
        paths = [results.ceilings_path(folder, self.slug) for folder in (self.output, repository)]
        with Supervisor(self.device, config.timing, config.seed, config.point_timeout_s) as worker:
            self.ceilings = calibration.known_or_measured(worker, self.environment, paths, paths[0])

    def choose(self) -> None:
        """Find who meets where, by the ledgers. Raises UserError if nobody does."""
        target = Target(self.device.kind, device.capabilities(self.device))
        for entry in self.entries:
            wanted = plan(entry, self.config.preset.name, target)
            of_entry = self._of_entry(entry, wanted)
            if not of_entry:
                self.left_out.append(
                    f"{entry.name}: its ledger has no times of this preset that are not old."
                )
            self.finalists |= {one.match: one for one in of_entry}
        if not self.finalists:
            raise UserError(
                f"no ledger in {self.output} has times to go by: run python -m pipeline.sweep kernel=NAME "
                f"output={self.config.output} first."
            )

    def _of_entry(self, entry: Entry, wanted: Plan) -> list[Finalists]:
        kernel = entry.loaded.kernel
        identity = Identity(entry.loaded, self.environment, self.config.timing, self.config.seed)
        side = Side("tree", ROOT, entry.loaded.where)
        ledger = results.ledger_path(self.output, entry.name, self.slug)
        # Of a preset the problems; configurations are those of every sweep, whatever its preset.
        workloads = {point.problem: workload for point, workload in wanted.workloads.items()}
        best: dict[Values, dict[str, Measurement]] = {problem: {} for problem in workloads}
        for row in results.own_rows(ledger, warn):
            is_timed = row.outcome.timing is not None
            if is_timed and row.point.problem in best and row.key == identity.key(row.point):
                of_problem = best[row.point.problem]
                other = of_problem.get(row.point.provider)
                # One that is not to be trusted is taken only where the provider has no other.
                if other is None or _rank(row) < _rank(other):
                    workload = workloads[row.point.problem]
                    of_problem[row.point.provider] = row.model_copy(update={"workload": workload})
        found = []
        best = {problem: some for problem, some in best.items() if some}
        chosen = best.keys() if self.config.preset.closer == "all" else choice.largest(wanted)
        for some in (some for problem, some in best.items() if problem in chosen):
            ordered = sorted(
                some.values(),
                key=lambda row: (written_by(kernel.provider(row.point.provider)) != "own", _rank(row)),
            )
            for row in ordered:
                if source := kernel.provider(row.point.provider).extension:
                    extension.build(Place.of(entry.loaded), [source])
            rows = {Rival(side, row.point, row.key): row for row in ordered}
            assert self.ceilings is not None, "ceilings are found before finalists are chosen"
            name = noise_class(rate(1.0, self._work(entry, ordered[0]), self.ceilings), 1.0)
            found.append(Finalists(entry, Match(tuple(rows), self.ceilings.noise.get(name, 0.0)), rows))
        return found

    def _work(self, entry: Entry, row: Measurement) -> Work:
        kernel = entry.loaded.kernel
        return kernel.work(problems.make(kernel.problem, row.point.problem))

    def hold(self) -> None:
        """Hold the rounds, keep each turn as it comes, and write the finals."""
        config, preset = self.config, self.config.preset
        limits = Limits(preset.rounds, max(preset.rounds, preset.most_rounds))
        assert self.ceilings is not None, "ceilings are found before finals are held"
        with Progress(console, f"finals on {self.slug}") as progress:

            def report(turn: Turn) -> None:
                turns.append(finals.rounds_path(self.output, turn.point.kernel, self.slug), turn)
                progress.advance(f"round {turn.round + 1}: {turn.point}")

            contest = Contest(
                tuple(self.finalists),
                limits,
                Rule(margin=config.margin),
                self.run,
                report,
                progress.expect,
                self._extra,
            )
            if not config.remeasure:
                for entry in self.entries:
                    contest.know(turns.read(finals.rounds_path(self.output, entry.name, self.slug), warn))
            self.contest = contest
            try:
                contest.hold(
                    self.device, config.timing, config.seed, config.point_timeout_s, self.ceilings.overhead
                )
            finally:
                self.write()

    def _extra(self, worker: Supervisor, match: Match, rival: Rival, turn: Turn) -> Extra:
        """How right a finalist is, once; and how fast one stays that a GPU's power may hold down."""
        is_long = turn.outcome.timing is not None and turn.outcome.timing.median_us > LONG_US
        lasting = is_long and rival in self._lasting(match) and turn.round < self.config.preset.rounds
        if turn.round > 0 and not lasting:
            return Extra()
        return worker.extra(rival.side.where, rival.point, WORK_S if lasting else None)

    def _lasting(self, match: Match) -> list[Rival]:
        """Those of a match that a GPU's power may hold down and that are worth seconds: the best of ours, the
        baseline and the best peer."""
        finalists = self.finalists[match]
        kernel, row = finalists.entry.loaded.kernel, next(iter(finalists.rows.values()))
        bound = rate(1.0, self._work(finalists.entry, row), self.ceilings).bound
        if self.device.kind != "cuda" or bound != "compute":
            return []
        by = {rival: written_by(kernel.provider(rival.point.provider)) for rival in match.rivals}
        chosen = [rival for rival in match.rivals if rival.point.provider == kernel.baseline]
        for who in ("own", "peer"):
            # The fastest by the sweep stands first among those of its kind.
            chosen += [rival for rival in match.rivals if by[rival] == who][:1]
        return chosen

    def write(self) -> None:
        """Add the finals of those matches that this run has measured rounds of."""
        assert self.contest is not None, "finals are held before they are written"
        rows = self.rows()
        for entry in self.entries:
            path = finals.path(self.output, entry.name, self.slug)
            known = {(row.key, row.power, row.rounds_us) for row in finals.newest(finals.read(path, warn))}
            new = [
                row
                for match, of_match in rows.items()
                if self.finalists[match].entry is entry
                and any((row.key, row.power, row.rounds_us) not in known for row in of_match)
                for row in of_match
            ]
            if new:
                finals.append(path, new)

    def rows(self) -> dict[Match, list[Final]]:
        """The finals of each match that has rounds, each against the fastest of ours."""
        contest = self.contest
        assert contest is not None and self.ceilings is not None
        middles = {match: medians(contest.times(match)) for match in contest.matches}
        held = {match: middle for match, middle in middles.items() if middle}
        own = {match: self._fastest_of_ours(match, middle) for match, middle in held.items()}
        against = {match: rival or match.rivals[0] for match, rival in own.items()}
        estimates = contest.estimates(lambda match: against.get(match, match.rivals[0]))
        decided = contest.verdicts(lambda match: against.get(match, match.rivals[0]))
        found: dict[Match, list[Final]] = {}
        for match, middle in held.items():
            finalists = self.finalists[match]
            for rival, us in middle.items():
                row = finalists.rows[rival]
                one = estimates.get((match, rival))
                beside = None
                if own[match] is not None and one is not None:
                    beside = _against(against[match], one, decided[match, rival])
                kernel = finalists.entry.loaded.kernel
                found.setdefault(match, []).append(
                    Final(
                        key=rival.key,
                        point=rival.point,
                        workload=row.workload,
                        by=written_by(kernel.provider(rival.point.provider)),
                        rounds_us=tuple(contest.times(match)[rival]),
                        median_us=us,
                        swept_us=_us(row),
                        headline=finalists.entry.headline(row.workload),
                        rate=rate(us, self._work(finalists.entry, row), self.ceilings),
                        against=beside,
                        power="burst",
                        accuracy=next(
                            (turn.accuracy for turn in contest.of(rival) if turn.accuracy is not None), None
                        ),
                        parts=row.parts,
                        origin=self._origin(finalists.entry, match),
                    )
                )
            found[match] += self._sustained(match, own[match])
        return found

    def _sustained(self, match: Match, own: Rival | None) -> list[Final]:
        """The finals of those that were also timed after seconds of work, against ours if that was."""
        assert self.contest is not None and self.ceilings is not None
        finalists = self.finalists[match]
        held = {
            rival: {turn.round: turn.sustained for turn in self.contest.of(rival) if turn.sustained}
            for rival in match.rivals
        }
        # By the rate that this GPU keeps up, where it was measured.
        kept = self.ceilings.sustained_tflops or self.ceilings.matmul_tflops
        ceilings = self.ceilings.model_copy(update={"matmul_tflops": kept})
        ratios: dict[Rival, Estimate] = {}
        for rival, rounds in held.items():
            if own is not None and rival != own and (both := sorted(rounds.keys() & held[own].keys())):
                pairs = [rounds[number].median_us / held[own][number].median_us for number in both]
                ratios[rival] = estimate(pairs, Rule(margin=self.config.margin), match.noise)
        decided = verdicts(ratios, Rule(margin=self.config.margin))
        found = []
        for rival, rounds in held.items():
            if not rounds:
                continue
            row, one = finalists.rows[rival], ratios.get(rival)
            times = tuple(one.median_us for one in rounds.values())
            last = list(rounds.values())[-1]
            us = median(times)
            found.append(
                Final(
                    key=rival.key,
                    point=rival.point,
                    workload=row.workload,
                    by=written_by(finalists.entry.loaded.kernel.provider(rival.point.provider)),
                    rounds_us=times,
                    median_us=us,
                    swept_us=_us(row),
                    headline=finalists.entry.headline(row.workload),
                    rate=rate(us, self._work(finalists.entry, row), ceilings),
                    against=None if one is None or own is None else _against(own, one, decided[rival]),
                    power="sustained",
                    sm_clock_mhz=last.sm_clock_mhz,
                    joules=last.joules,
                    parts=row.parts,
                    origin=self._origin(finalists.entry, match),
                )
            )
        return found

    def _fastest_of_ours(self, match: Match, middle: Mapping[Rival, float]) -> Rival | None:
        kernel = self.finalists[match].entry.loaded.kernel
        ours = [rival for rival in middle if written_by(kernel.provider(rival.point.provider)) == "own"]
        return min(ours, key=middle.__getitem__, default=None)

    def _origin(self, entry: Entry, match: Match) -> Origin:
        tool, tool_dirty = commit.head(ROOT)
        outside = entry.loaded.is_outside
        own, dirty = commit.head(entry.loaded.folder, ["."]) if outside else (tool, tool_dirty)
        return Origin(
            gpu=self.slug,
            device=str(self.device),
            run=self.run,
            command=self.command,
            commit=own,
            dirty=dirty or tool_dirty,
            tool=tool if outside else None,
            measured_at=datetime.now(UTC),
            image=self.environment.image,
            base_image=self.environment.base_image,
        )

    def show(self) -> None:
        """Print the finals: the fastest of ours at each problem, beside torch and the fastest other."""
        if self.contest is None:
            return
        rows = self.rows()
        if rows:
            print_wide(console, table(list(rows.values()), f"finals on {self.slug}"))
        for match in self.contest.matches:
            if failed := self.contest.failure(match):
                rival, outcome = failed
                say(f"{rival.point} was {outcome.status}: {outcome.error}")
        for line in self.left_out:
            say(line)
        if curse := [row.median_us / row.swept_us for some in rows.values() for row in some]:
            say(
                f"Finals take {geometric_mean(curse):.4f} times what the sweeps had found of the same points."
            )
        count = sum(map(len, rows.values()))
        say(
            f"{len(rows)} problems, {count} finalists, {monotonic() - self.begin:.1f} s. "
            f"They are in {self.output / 'finals'}."
        )


def table(groups: Sequence[Sequence[Final]], title: str) -> Table:
    """The fastest of ours at each problem, with the rate that people compare, and each other's time over
    it."""
    found = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    for heading in ("kernel", "problem", "fastest of ours", "us", "of ceiling", "the others: time over ours"):
        right = heading in ("us", "of ceiling")
        found.add_column(heading, justify="right" if right else "left", no_wrap=right, overflow="fold")
    for group in groups:
        best = next((row for row in group if row.by == "own" and row.against is None), None)
        if best is None:
            continue
        others = [row for row in group if row.power == "burst" and row.by != "own"]
        words = ", ".join(
            f"{row.point.provider} {row.against.ratio:.2f} {row.against.verdict}"
            for row in others
            if row.against
        )
        problem = f"{notation.extent(best.point)} {notation.words(best.point)}"
        name = notation.label(best.point)
        fraction = percent(best.rate.ceiling_fraction)
        found.add_row(best.point.kernel, problem, name, number(best.median_us), fraction, words)
    return found


def _against(other: Rival, one: Estimate, verdict: Verdict) -> Against:
    high = one.high if one.rounds > 1 else None
    return Against(point=other.point, ratio=one.ratio, low=one.low, high=high, verdict=verdict)


def _us(row: Measurement) -> float:
    assert row.outcome.timing is not None, "a finalist was timed"
    return row.outcome.timing.median_us


def _rank(row: Measurement) -> tuple[bool, float]:
    state = row.outcome.state
    return state is not None and not state.valid, _us(row)


if __name__ == "__main__":
    run_stage("finals", FinalsConfig, run)
