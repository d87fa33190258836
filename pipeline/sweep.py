"""Stage ``sweep``: verify and time the points of kernels on one device.

    python -m pipeline.sweep kernel=softmax block_size=[512,1024] provider=triton_online
    python -m pipeline.sweep kernel=matmul m=16 n=8192 k=[4096,8192] provider=[torch,triton_tiled]
    python -m pipeline.sweep kernel=gelu,softmax
    python -m pipeline.sweep experiment=llm_vocab_softmax
    python -m pipeline.sweep kernel=softmax cluster=ray
    python -m pipeline.sweep kernel=matmul size=4096 dtype=bfloat16 provider=triton_tiled search=tpe trials=60
    python -m pipeline.sweep kernel=softmax workload=untuned.json
    python -m pipeline.sweep kernel=softmax output=results search=tpe replay=true

Measures the points that each kernel's ledger does not hold yet, appends each as it is measured, and ends with
a table. Stopped in any way, the same command goes on where it was.

With search=tpe or search=random it measures some of all configurations that the providers declare, whatever
the preset's lists are; pins bind. One search is one provider at one problem. trials=N counts the
configurations of each search, with those that the ledger holds already. seconds=N is the time of all searches
of a kernel together, which they share evenly. With replay=true a search is played against the grids that
ledgers hold: how near does it come to the best?
"""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from pipeline import ROOT, UserError
from pipeline.command.options import Engine, SweepConfig
from pipeline.command.run import UnsuccessfulError, console, run_each, say, warn
from pipeline.execution import controls, debugging, identity, memory_limit
from pipeline.execution.audit import drawn
from pipeline.execution.controls import Steadiness
from pipeline.execution.plausibility import judged
from pipeline.execution.schedule import Agenda, Schedule
from pipeline.execution.sidecar_files import SidecarFiles
from pipeline.execution.supervisor import Supervisor
from pipeline.execution.team import Here, Team
from pipeline.machine import device
from pipeline.machine.environment import drawn as drawn_here
from pipeline.machine.environment import fingerprint, flags
from pipeline.machine.lock import DeviceLock
from pipeline.points import notation, problems
from pipeline.points.plan import Plan, Target, plan, with_baseline
from pipeline.points.point import Point
from pipeline.points.searches import Searches
from pipeline.reporting.numbers import print_wide
from pipeline.reporting.sweep_output import (
    Found,
    SweepOutput,
    best_so_far,
    failures_of_own,
    in_words,
    nothing_to_measure,
)
from pipeline.reporting.terminal import Bars, Progress
from pipeline.store import commit, results, retry, runs
from pipeline.store.ceilings import DISTURBED, Ceilings, rate
from pipeline.store.ledger import Ledger
from pipeline.store.provenance import RunProvenance
from pipeline.store.record import Measurement, Outcome, Parts
from pipeline.store.runs import Heading, Recorder

if TYPE_CHECKING:
    from pipeline.cluster.team import ClusterTeam


def run(configs: Sequence[SweepConfig]) -> None:
    """Measure what the ledgers lack, print the tables, publish. Raises UnsuccessfulError where own providers
    failed."""
    first = configs[0]  # all but the kernel is the same
    if first.replay:
        replay(configs)
        return
    if first.cluster is not None:
        on_cluster(configs, first.cluster)
        return
    devices = device.resolve_all(first.device)
    if first.debug:
        debug(configs, devices[0])
        return
    target = target_of(devices[0])
    with ExitStack() as stack:
        # It waits for what compilers say of themselves, meanwhile.
        environment = stack.enter_context(ThreadPoolExecutor(1)).submit(fingerprint, devices[0])
        # Before it waits for anybody: a mistake is said at once.
        plans = planned(configs, target)
        # Held from before a ledger is read: a second sweep finds in it what the first one measured.
        for chosen in devices:
            stack.enter_context(DeviceLock(chosen, first.wait_s, warn))
        workers = [
            stack.enter_context(
                Supervisor(
                    chosen,
                    first.timing,
                    first.seed,
                    first.point_timeout_s,
                    heeds_load=True,
                )
            )
            for chosen in devices
        ]
        for chosen in devices:
            if count := controls.neighbours(chosen, measuring=False):
                warn(f"{count} other process{'es' * (count > 1)} compute on {chosen}: times may be longer.")
        begin = monotonic()
        team = stack.enter_context(Here(devices, workers, environment.result()))
        # All before the first is measured: compilers go on to the next kernel's while this one's are timed.
        sweeps = [Sweep(config, team, wanted) for config, wanted in zip(configs, plans, strict=True)]
        for sweep in sweeps:
            sweep.prepare()
        for why in identity.unknown_commits([one.identity for one in sweeps if one.provenance is not None]):
            warn(why)
        for sweep in sweeps:
            sweep.hold()
    conclude(sweeps, monotonic() - begin)


def replay(configs: Sequence[SweepConfig]) -> None:
    """Play the search against each ledger, and print a table. Raises UserError where no ledger has a grid."""
    from pipeline.reporting import replays  # which imports what no other sweep needs

    is_shown = False
    for config in configs:
        name, sampler = config.entry.name, config.search
        assert sampler != "exhaustive", "the options are checked"
        for folder in results.folders_of(config.output):
            for path in results.listed(folder, f"timings/{name}/*.jsonl", warn):
                rows = results.own_rows(path, warn)
                if found := replays.grids(config.entry, rows, config.pin, config.provider):
                    title = f"{name} on {path.stem}"
                    print_wide(console, replays.searched(found, sampler, config.ahead, title))
                    is_shown = True
    if not is_shown:
        raise UserError(
            f"{configs[0].output} has no grid of {replays.FEWEST} configurations of one provider at one "
            "problem that was asked for; measure one by a sweep, or name its folder by output=."
        )


def on_cluster(configs: Sequence[SweepConfig], engine: Engine) -> None:
    """The same on a cluster: every model of GPU that it has measures all points, into ledgers of its own, and
    the models do so at the same time."""
    from pipeline.cluster.station import Assignment
    from pipeline.cluster.team import kind_of, teams_of

    first = configs[0]
    if first.debug:
        raise UserError("debug=true calls each point in this process; leave cluster= out.")
    with ExitStack() as stack:
        kind = kind_of(first.device)
        assignment = Assignment(
            kind=kind,
            settings=first.timing,
            seed=first.seed,
            timeout_s=first.point_timeout_s,
            wait_s=first.wait_s,
            kernels=tuple(config.entry.loaded.where for config in configs),
            flags=flags(kind),
            drawn=drawn_here(),
        )
        entries = [config.entry for config in configs]
        teams = stack.enter_context(teams_of(engine, entries, assignment, warn))
        begin = monotonic()
        plans = [planned(configs, team.target) for team in teams]
        bars = stack.enter_context(Bars(console))
        said: set[str] = set()
        saying = Lock()

        def say_unknown_commits(one: Sweep) -> None:
            """Each sentence once, for all models measure the same tree."""
            with saying:
                for why in identity.unknown_commits([one.identity] if one.provenance is not None else []):
                    if why not in said:
                        said.add(why)
                        warn(why)

        def measured(team: ClusterTeam) -> list[Sweep]:
            of_team = plans[teams.index(team)]
            found = []
            for config, one in zip(configs, of_team, strict=True):
                found.append(Sweep(config, team, one, bars))
                found[-1].prepare()
                say_unknown_commits(found[-1])
                found[-1].hold()
            return found

        swept = at_once(teams, measured)
        seconds = monotonic() - begin
    conclude([one for several in swept for one in several], seconds)


def at_once(
    teams: Sequence[ClusterTeam], measured: Callable[[ClusterTeam], list[Sweep]]
) -> list[list[Sweep]]:
    """Measure by every team, each in a thread. One that fails leaves the others at it, and its error is
    raised when they are done. Ctrl-C ends all of them, and says how far each came."""
    with ThreadPoolExecutor(len(teams)) as threads:
        futures = [threads.submit(measured, team) for team in teams]
        try:
            wait(futures)
        except KeyboardInterrupt as stop:
            for team in teams:
                team.stop()
            for future in futures:
                for note in getattr(future.exception(), "__notes__", ()):
                    stop.add_note(note)
            raise
        return [future.result() for future in futures]


def conclude(swept: Sequence[Sweep], seconds: float) -> None:
    """Say how much was measured of several kernels, and publish each. Raises UnsuccessfulError as ``judge``
    does."""
    if len(swept) > 1:
        measured = sum(len(sweep.measured) for sweep in swept)
        kernels = len({sweep.entry.name for sweep in swept})
        of = f"{kernels} kernels" if kernels > 1 else f"{len(swept)} models"
        say(f"{of}: {notation.points(measured)} measured in {seconds:.1f} s.")
    for sweep in swept:
        if sweep.config.tracking.name != "none":
            publish(sweep.config, sweep)
    rows = ((sweep.entry, row) for sweep in swept for row in sweep.sweep_output().current())
    judge(((entry, row.point, row.outcome) for entry, row in rows), swept[0].config.allow or ())


def planned(configs: Sequence[SweepConfig], target: Target) -> list[Plan]:
    """The points of every kernel. Raises UserError for a mistake about any of them."""
    every = configs[0].budget is not None
    plans = [
        plan(config.entry, config.preset.name, target, config.pin, config.provider, every, config.workload)
        for config in configs
    ]
    if configs[0].debug:
        return plans
    return [
        with_baseline(wanted, config.entry, config.preset.name, target, config.pin, every, config.workload)
        for config, wanted in zip(configs, plans, strict=True)
    ]


def target_of(chosen: device.Device) -> Target:
    """A device of this host as plans know it."""
    return Target(chosen.kind, device.capabilities(chosen))


def debug(configs: Sequence[SweepConfig], chosen: device.Device) -> None:
    """Call each point once in this process, and say what it gave. Raises UnsuccessfulError as ``judge``
    does."""
    debugging.prepare(chosen)
    say("debug=true: each point is called once in this process. Nothing is timed, and no row is written.")
    found = []
    try:
        for config, wanted in zip(configs, planned(configs, target_of(chosen)), strict=True):
            for point in wanted.points:
                outcome = debugging.call(config.entry.loaded.where, point, chosen, config.seed)
                found.append((config.entry, point, outcome))
                say(f"{point}: {in_words(outcome)}")
    except BdbQuit:
        raise UnsuccessfulError("the debugger was left; the points after it were not called.") from None
    judge(found, configs[0].allow or ())


def judge(found: Iterable[Found], allowed: Sequence[str]) -> None:
    """Raises UnsuccessfulError if points of own providers failed, in any way but those that are allowed."""
    if sentence := failures_of_own(found, allowed):
        raise UnsuccessfulError(sentence)


class Sweep:
    """One run over the points of one kernel on the devices of one model, whose team measures other kernels
    too."""

    def __init__(self, config: SweepConfig, team: Team, wanted: Plan, shown: Bars | None = None) -> None:
        devices, environment = team.devices, team.environment
        self.config = config
        self.team = team
        self.shown = shown
        self.entry = config.entry
        self.loaded = self.entry.loaded
        self.devices = devices
        self.environment = environment
        self.plan = wanted
        self.slug = devices[0].slug
        self.output = results.folder_for(config.output, devices[0].kind)
        self.identity = team.identity(self.loaded, config.timing, config.seed)
        self.run = commit.new_run()
        self.command = commit.command_line("sweep")
        self.provenance: RunProvenance | None = None
        results.asked_for(results.ledger_path(config.output, self.entry.name, self.slug))
        self.ledger = Ledger(results.ledger_path(self.output, self.entry.name, self.slug), warn)
        self.beside = SidecarFiles(
            self.output, self.entry.name, environment, devices[0].kind, config.model_dump(mode="json")
        )
        self.ahead = team.ahead(self.loaded)
        self.agenda: Agenda | None = None
        self.searches: Searches | None = None
        self.measured: set[Point] = set()
        self.recorder: Recorder | None = None
        self.steadiness = Steadiness()
        self.ceilings: Ceilings | None = None
        self.begin = monotonic()

    def prepare(self) -> None:
        """Find what has to be measured, and begin to compile of it what is compiled ahead."""
        self.refresh()
        if self.environment.kind == "cuda":
            known = self.known()
            if not known.keys() >= set(self.plan.points):
                self.team.begin()  # it imports torch; so does a look at large problems, here
            memory = self.environment.memory_mib << 20
            self.plan = memory_limit.within(self.plan, self.loaded, memory, known)
        self.agenda = self.missing()
        if self.agenda.is_empty:
            return
        if self.environment.kind != "cpu":  # there it starts once nothing is compiled any more
            self.team.begin()
        self.ahead.begin(self.agenda.examples)
        self.ahead.submit(self.agenda.due)
        self.note_run()

    def note_run(self) -> None:
        """Note what all rows of this run share, its commit among it."""
        self.provenance = identity.run_here(
            self.run, self.command, self.environment, self.devices, [self.identity]
        )

    def hold(self) -> None:
        """Measure what the ledger lacks, and print the table."""
        assert self.agenda is not None, "it is prepared before"
        self.begin = monotonic()
        with ExitStack() as stack:
            try:
                self.measure(self.agenda, stack)
            except BaseException as error:
                # A full disk stops both; the first error's sentence is the one that says how to go on.
                with suppress(UserError):
                    self.finish()
                if isinstance(error, KeyboardInterrupt):
                    error.add_note(self.sweep_output().summary_line())
                else:
                    self.sweep_output().show(console)
                raise
            self.finish()
            self.sweep_output().show(console)

    def refresh(self) -> None:
        """Let rows say what their times mean by the kernel's work as it is now, and by ceilings that they had
        to do without: no time depends on either."""
        ceilings = self.beside.known_ceilings()

        def change(row: Measurement) -> Measurement:
            if row.rate is None or row.outcome.timing is None or row.point not in self.plan.workloads:
                return row
            work = self.loaded.kernel.work(problems.make(self.loaded.kernel.problem, row.point.problem))
            is_same = (row.rate.bytes, row.rate.flops) == (work.bytes, work.flops)
            if is_same and row.rate.ceiling_fraction is not None:
                return row
            found = rate(row.outcome.timing.median_us, work, ceilings)
            return row if found == row.rate else row.model_copy(update={"rate": found})

        if any(change(row) is not row for row in self.ledger.rows()):
            self.ledger.compact(change)

    def missing(self) -> Agenda:
        """What has to be measured."""
        known = {} if self.config.remeasure else self.known()
        found = Agenda(self.plan.points, known, self.config.retry, self.config.budget, self.ahead)
        self.searches = found.searches
        return found

    def known(self) -> dict[Point, Measurement]:
        """What the ledger holds of what would be measured now."""
        rows = (row for row in self.ledger.rows() if row.point in self.plan.workloads)
        here = (row for row in rows if row.origin.gpu == self.slug)
        return {row.point: row for row in here if row.key == self.identity.key(row.point)}

    def measure(self, wanted: Agenda, stack: ExitStack) -> None:
        """Measure what is wanted and append each point to the ledger; ``stack`` ends what else runs
        meanwhile."""
        if wanted.is_empty:
            if self.plan.points:
                say(nothing_to_measure(self.ledger.path, wanted.searches))
                if not self.beside.is_there():
                    self.beside.write(self.team)
            return
        total, expected = wanted.total, wanted.expected
        points = wanted.refill(wanted.due)
        broken = self.build(wanted.examples)
        self.team.begin()
        ceilings = self.ceilings = self.beside.write(self.team)
        if ceilings.is_disturbed:
            warn(DISTURBED)
        self.team.know(ceilings.canary)
        assert self.provenance is not None, "what is measured was prepared"
        self.ledger.note(self.provenance)
        if runs.is_ad_hoc(self.output):
            heading = Heading(
                run=self.run,
                kernel=self.entry.name,
                environment=self.environment,
                ceilings=ceilings,
                provenance=self.provenance,
            )
            self.recorder = stack.enter_context(Recorder(self.output, heading))
        else:
            runs.note(self.run)
        title = f"{self.entry.name} on {self.slug}"
        with Progress(console, title, total, self.shown, self.team.devices) as progress:
            report = partial(self.report, wanted, ceilings, progress)
            for provider, reason in broken.items():
                of_it = [point for point in points if point.provider == provider]
                for point in (*of_it, *wanted.give_up(provider)):
                    report(point, Outcome(status="compile_error", error=reason), self.devices[0])
            sound = [point for point in points if point.provider not in broken]
            crew = self.team.crew(self.loaded, self.control(wanted.examples), report, self.audited(sound))
            schedule = self.schedule(sound, wanted, crew.size)
            wanted.start()
            self.steadiness = crew.measure(schedule, expected)
        for provider, what in self.team.changes().items():
            warn(f"{self.entry.name}/{provider} changed its process, which was replaced: {what}.")

    def audited(self, points: Sequence[Point]) -> frozenset[Point]:
        """The points whose times are audited in any case: all, or one at random of each provider and
        workload."""
        if self.config.audit == "all":
            return frozenset(self.plan.points)
        return drawn(points, self.plan.workloads)

    def schedule(self, points: Sequence[Point], wanted: Agenda, workers: int) -> Schedule:
        """What hands the points out to so many workers."""
        refill = None if wanted.searches is None else wanted.refill
        return Schedule(points, self.ahead.futures, self.compiles_itself, workers, refill)

    def report(
        self,
        wanted: Agenda,
        ceilings: Ceilings,
        progress: Progress,
        point: Point,
        outcome: Outcome,
        measured_on: device.Device,
    ) -> None:
        """Keep what a point gave. Raises UserError when it can't be written."""
        row = self.measurement(point, outcome, measured_on, ceilings)
        before = self.ledger.get(point, row.parts.settings)
        self.ledger.append(row)
        if self.recorder is not None:
            self.recorder.append(row, None if before is None else before.parts)
        self.measured.add(point)
        best = wanted.tell(row)
        progress.advance(str(point), "" if best is None else best_so_far(*best), measured_on)

    def control(self, points: Sequence[Point]) -> Point:
        """The point that is measured again and again for the noise floor: the baseline at a middle
        problem."""
        order = list(dict.fromkeys(point.problem for point in points))
        middle = order[len(order) // 2]
        baseline = self.loaded.kernel.provider(self.loaded.kernel.baseline)
        parameters = problems.make(baseline.parameters, {}) if baseline.parameters else None
        return Point(
            kernel=self.entry.name,
            provider=baseline.name,
            problem=middle,
            parameters=problems.values_of(parameters),
        )

    def compiles_itself(self, point: Point) -> bool:
        """Whether the point is compiled by the worker that measures it."""
        return self.loaded.kernel.provider(point.provider).compiled

    def finish(self) -> None:
        """Compact the ledger, and write again what was removed from beside it meanwhile."""
        self.compact()
        self.beside.keep()

    def build(self, points: Sequence[Point]) -> dict[str, str]:
        """Build the extensions that the points need here; the reason by provider for those that fail."""
        broken = self.team.build(self.loaded, {point.provider for point in points})
        for name, reason in broken.items():
            warn(f"{self.entry.name}/{name} was not built: {reason}")
        return broken

    def measurement(
        self, point: Point, outcome: Outcome, measured_on: device.Device, ceilings: Ceilings
    ) -> Measurement:
        """The ledger's line for an outcome."""
        assert self.provenance is not None, "what is measured was prepared"
        work = self.loaded.kernel.work(problems.make(self.loaded.kernel.problem, point.problem))
        timing = outcome.timing
        outcome, rated = judged(outcome, None if timing is None else rate(timing.median_us, work, ceilings))
        parts = self.identity.parts(point)
        before = self.ledger.get(point, parts.settings)
        return Measurement(
            key=parts.key,
            point=point,
            workload=self.plan.workloads[point],
            outcome=outcome,
            rate=rated,
            parts=parts,
            attempts=self.attempts(before, parts),
            earlier=None if before is None else before.before(parts),
            origin=self.provenance.origin(self.entry.name, datetime.now(UTC), str(measured_on)),
        )

    def attempts(self, before: Measurement | None, parts: Parts) -> int:
        """How many runs have tried a point by now, from its last success or ``remeasure`` on."""
        if self.config.remeasure or before is None or before.key != parts.key:
            return 1
        return before.attempts + 1 if retry.has_failed(before) else 1

    def compact(self) -> None:
        """Compact the ledger; every row stays, those of this run with what the whole run has shown."""
        known = {} if self.ceilings is None else self.ceilings.noise

        def settled(row: Measurement) -> Measurement:
            return self.steadiness.settled(row, known) if row.origin.run == self.run else row

        if self.measured:
            self.ledger.compact(settled)
        if self.recorder is not None:
            self.recorder.finish(settled)

    def rows(self) -> list[Measurement]:
        """What the ledger holds of this sweep's points; of searches, which don't come to every point, no old
        rows."""
        found = (self.ledger.get(point, self.identity.settings_digest) for point in self.plan.points)
        return [
            row
            for row in found
            if row is not None and (self.searches is None or row.key == self.identity.key(row.point))
        ]

    def sweep_output(self) -> SweepOutput:
        """What this sweep has to say at its end."""
        return SweepOutput(
            entry=self.entry,
            plan=self.plan,
            identity=self.identity,
            ledger=self.ledger.path,
            rows=self.rows(),
            measured=len(self.measured),
            seconds=monotonic() - self.begin,
            noise_floor=self.steadiness.noise_floor,
            run=self.run,
            searches=self.searches,
        )


def publish(config: SweepConfig, sweep: Sweep) -> None:
    """Log to MLflow what the table shows: the ad-hoc sweeps that measured its rows, or the repository's
    results. A tracker in trouble has harmed no measurement."""
    from pipeline.tracking import publisher
    from pipeline.tracking.publisher import Selection, Tracker

    sources = Selection(
        input=config.output,
        kernel=sweep.entry.name,
        reports=ROOT / "reports",
        artifacts=ROOT / "artifacts",
    )
    if runs.is_ad_hoc(sweep.output):
        measured = frozenset(row.origin.run for row in sweep.rows())
        sources = Selection(runs=runs.folder_in(sweep.output), kernel=sweep.entry.name, ids=measured)
    tracker = Tracker(config.tracking.name, config.tracking.uri)
    published = publisher.publish(sources, tracker, say)
    if published is not None:
        say(publisher.how_to_open(published))


if __name__ == "__main__":
    run_each("sweep", SweepConfig, run)
