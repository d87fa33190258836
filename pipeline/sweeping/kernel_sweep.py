"""Run one sweep over the points of one kernel on devices of one model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic

import yaml

from kernel_pipeline import problems
from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.audit import drawn
from kernel_pipeline.execution.plausibility import judged
from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine import device
from kernel_pipeline.records.ceilings import DISTURBED, Ceilings, rate
from kernel_pipeline.records.measurement import Measurement, Outcome, Parts
from kernel_pipeline.records.point import Point

from ..command.options import SweepConfig
from ..command.run import console, say, warn
from ..execution import memory_limit
from ..execution.controls import Steadiness
from ..execution.device_group import DeviceGroup
from ..execution.schedule import Agenda, Schedule
from ..execution.sidecar_files import SidecarFiles
from ..execution.worker_pool import DeviceTime
from ..keys import identity
from ..points.catalog import KERNELS
from ..points.plan import Plan, Target, plan, with_baseline
from ..points.searches import Searches
from ..reporting.sweep_output import SweepOutput, best_so_far, nothing_to_measure
from ..reporting.terminal import Bars, Progress
from ..store import commit, plain_yaml, results, retry, runs
from ..store.ledger import Ledger
from ..store.provenance import RunProvenance
from ..store.runs import Heading, Recorder


def planned(configs: Sequence[SweepConfig], target: Target) -> list[Plan]:
    """Return the plan of each kernel, with its baseline unless debug=true. Raises UserError if the options of
    any kernel are wrong, or if two kernels share a name."""
    plans = []
    folders: dict[str, Path] = {}
    for config in configs:
        loaded = config.entry.loaded
        _refuse_shared(loaded, folders.setdefault(loaded.name, loaded.folder))
        every = config.budget is not None
        made = plan(
            config.entry, config.preset.name, target, config.pin, config.provider, every, config.workload
        )
        if not config.debug:
            made = with_baseline(
                made, config.entry, config.preset.name, target, config.pin, every, config.workload
            )
        plans.append(made)
    return plans


def _refuse_shared(loaded: Loaded, other: Path) -> None:
    """Raise UserError if a kernel's ledger would be that of another folder, too: each of the two would take
    the other's rows for its own before an edit."""
    if loaded.folder != other:
        raise UserError(
            f"{loaded.folder} and {other} would share a ledger, which is named {loaded.name} after the "
            "folder: rename one of them, or sweep each into a folder of its own by output=."
        )


def _swept_before(configuration: Path) -> Path | None:
    """Return the folder of the kernel that last wrote a ledger, by the configuration beside the ledger; None
    if the folder is no longer there, as after a move."""
    try:
        folder = plain_yaml.load(configuration.read_text())["kernel"]
        # A name is a kernel's of this project.
        found = Path(folder).expanduser().resolve() if "/" in folder else KERNELS / folder
        return found if (found / "__init__.py").is_file() else None
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return None


class KernelSweep:
    """One sweep over the points of one kernel on a group of devices, which may sweep other kernels, too. Each
    row is appended to the kernel's ledger as soon as it is measured."""

    def __init__(
        self, config: SweepConfig, group: DeviceGroup, wanted: Plan, bars: Bars | None = None
    ) -> None:
        devices, environment = group.devices, group.environment
        self.config = config
        self.group = group
        self.bars = bars
        self.entry = config.entry
        self.loaded = self.entry.loaded
        self.devices = devices
        self.environment = environment
        self.plan = wanted
        self.slug = devices[0].slug
        self.output = results.folder_for(config.output, devices[0].kind)
        self.identity = group.identity(self.loaded, config.timing.settings, config.seed)
        self.run = commit.new_run()
        self.command = commit.command_line("sweep")
        self.provenance: RunProvenance | None = None
        results.asked_for(results.ledger_path(config.output, self.entry.name, self.slug))
        if self.loaded.is_outside:
            before = _swept_before(results.config_path(self.output, self.entry.name, self.slug))
            _refuse_shared(self.loaded, before or self.loaded.folder)
        self.ledger = Ledger(results.ledger_path(self.output, self.entry.name, self.slug), warn)
        self.sidecars = SidecarFiles(
            self.output, self.entry.name, environment, devices[0].kind, config.model_dump(mode="json")
        )
        self.ahead = group.ahead(self.loaded)
        self.agenda: Agenda | None = None
        self.searches: Searches | None = None
        self.measured: set[Point] = set()
        self.recorder: Recorder | None = None
        self.steadiness = Steadiness()
        self.device_times: dict[str, DeviceTime] = {}
        self.ceilings: Ceilings | None = None
        self.begin = monotonic()

    def prepare(self) -> None:
        """Find the missing points and start to compile them ahead."""
        self.refresh()
        if self.environment.kind == "cuda":
            known = self.known()
            if not known.keys() >= set(self.plan.points):
                self.group.begin()  # its processes import torch while the memory limit imports it here
            memory = self.environment.memory_mib << 20
            self.plan = memory_limit.within(self.plan, self.loaded, memory, known)
        self.agenda = self.missing()
        if self.agenda.is_empty:
            return
        if self.environment.kind != "cpu":  # a CPU's group starts after all compilation
            self.group.begin()
        self.ahead.begin(self.agenda.examples)
        self.ahead.submit(self.agenda.due)
        self.provenance = identity.run_here(
            self.run, self.command, self.environment, self.devices, [self.identity]
        )

    def finish(self) -> None:
        """Measure the missing points and print the table."""
        assert self.agenda is not None, "prepare() comes first"
        self.begin = monotonic()
        with ExitStack() as stack:
            try:
                self.measure(self.agenda, stack)
            except BaseException as error:
                # A full disk makes close() fail, too; the first error says how to go on.
                with suppress(UserError):
                    self.close()
                if isinstance(error, KeyboardInterrupt):
                    error.add_note(self.sweep_output().summary_line())
                else:
                    self.sweep_output().show(console)
                raise
            self.close()
            self.sweep_output().show(console)

    def refresh(self) -> None:
        """Recompute the rates of rows whose bytes or FLOPs differ from the kernel's current ``work``, and add
        missing shares of ceilings. Times stay the same."""
        ceilings = self.sidecars.known_ceilings()

        def change(row: Measurement) -> Measurement:
            if row.rate is None or row.outcome.timing is None or row.point not in self.plan.workloads:
                return row
            work = self.loaded.kernel.work(problems.make(self.loaded.kernel.problem, row.point.problem))
            is_same = (row.rate.bytes, row.rate.flops) == (work.bytes, work.flops)
            if is_same and row.rate.ceiling_fraction is not None:
                return row
            found = rate(row.outcome.timing.median_us, work, ceilings)
            return row if found == row.rate else row.replace(rate=found)

        if any(change(row) is not row for row in self.ledger.rows()):
            self.ledger.compact(change)

    def missing(self) -> Agenda:
        """Return the points to measure."""
        known = {} if self.config.remeasure else self.known()
        found = Agenda(self.plan.points, known, self.config.retry, self.config.budget, self.ahead)
        self.searches = found.searches
        return found

    def known(self) -> dict[Point, Measurement]:
        """Return the fresh rows of planned points from the ledger."""
        rows = (row for row in self.ledger.rows() if row.point in self.plan.workloads)
        here = (row for row in rows if row.origin.gpu == self.slug)
        return {row.point: row for row in here if row.key == self.identity.key(row.point)}

    def measure(self, wanted: Agenda, stack: ExitStack) -> None:
        """Measure the wanted points and append each row to the ledger. ``stack`` closes the run's record."""
        if wanted.is_empty:
            if self.plan.points:
                say(nothing_to_measure(self.ledger.path, wanted.searches))
                if not self.sidecars.is_there():
                    self.sidecars.write(self.group)
            return
        total, expected = wanted.total, wanted.expected
        points = wanted.refill(wanted.due)
        self.group.settle()
        self.group.begin()
        ceilings = self.ceilings = self.sidecars.write(self.group)
        if ceilings.is_disturbed:
            warn(DISTURBED)
        self.group.know(ceilings.canary)
        assert self.provenance is not None, "prepare() comes first"
        self.ledger.note(self.provenance)
        if results.is_ad_hoc(self.output):
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
        with Progress(console, title, total, self.bars, self.group.devices) as progress:
            report = partial(self.report, wanted, ceilings, progress)
            pool = self.group.pool(self.loaded, self.control(wanted.examples), report, self.audited(points))
            refill = None if wanted.searches is None else wanted.refill
            schedule = Schedule(points, self.ahead.futures, self.compiles_itself, pool.size, refill)
            wanted.start()
            self.device_times = dict(zip(map(str, self.devices), pool.spent, strict=True))
            self.steadiness = pool.measure(schedule, expected)
        for provider, change in self.group.changes().items():
            name = f"{self.entry.name}/{provider}"
            warn(f"{name} changed its worker process, so the process was replaced: {change}.")

    def audited(self, points: Sequence[Point]) -> frozenset[Point]:
        """Return the points that are always audited: all of them with ``audit=all``, else a random point of
        each provider and workload, and those that an audit has rejected before."""
        if self.config.audit == "all":
            return frozenset(self.plan.points)
        rejected = (row.point for row in self.rows() if retry.is_too_short(row.outcome))
        return drawn(points, self.plan.workloads).union(rejected)

    def report(
        self,
        wanted: Agenda,
        ceilings: Ceilings,
        progress: Progress,
        point: Point,
        outcome: Outcome,
        measured_on: device.Device,
    ) -> None:
        """Write a point's row and show progress. Raises UserError if the row can't be written."""
        row = self.measurement(point, outcome, measured_on, ceilings)
        before = self.ledger.get(point, row.parts.settings)
        self.ledger.append(row)
        if self.recorder is not None:
            self.recorder.append(row, None if before is None else before.parts)
        self.measured.add(point)
        best = wanted.tell(row)
        progress.advance(str(point), "" if best is None else best_so_far(*best), measured_on)

    def control(self, points: Sequence[Point]) -> Point:
        """Return the control point: the baseline at a middle problem. It is measured repeatedly for the noise
        floor."""
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
        """Return whether the worker compiles the point itself, by torch.compile."""
        return self.loaded.kernel.provider(point.provider).compiled

    def measurement(
        self, point: Point, outcome: Outcome, measured_on: device.Device, ceilings: Ceilings
    ) -> Measurement:
        """Return the ledger row for an outcome."""
        assert self.provenance is not None, "prepare() comes first"
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
        """Return the number of runs that tried the point since its last success or ``remeasure``, this run
        included."""
        if self.config.remeasure or before is None or before.key != parts.key:
            return 1
        return before.attempts + 1 if retry.has_failed(before) else 1

    def close(self) -> None:
        """Add the run's noise floor to its rows, compact the ledger, and restore removed sidecar files."""
        known = {} if self.ceilings is None else self.ceilings.noise

        def settled(row: Measurement) -> Measurement:
            return self.steadiness.settled(row, known) if row.origin.run == self.run else row

        if self.measured:
            self.ledger.compact(settled)
        if self.recorder is not None:
            self.recorder.finish(settled)
        self.sidecars.keep()

    def rows(self) -> list[Measurement]:
        """Return the ledger's rows of this sweep's points. A search skips points, so its old rows are left
        out."""
        found = (self.ledger.get(point, self.identity.settings_digest) for point in self.plan.points)
        return [
            row
            for row in found
            if row is not None and (self.searches is None or row.key == self.identity.key(row.point))
        ]

    def sweep_output(self) -> SweepOutput:
        """Return the output to print at the end of this sweep."""
        return SweepOutput(
            kernel=self.config.kernel,
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
            device_times=self.device_times,
        )
