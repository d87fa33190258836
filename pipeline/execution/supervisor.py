"""The processes that measure on a device, from outside: a worker for each provider, which is replaced when it
dies or was changed, and a verifier that runs none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Self

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import load
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.reaper import INTERPRETERS, WITHOUT_PLUGINS
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.credentials import TRACKER
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.timing.monitor import Monitor
from kernel_pipeline.toolchain import inductor
from pipeline import ROOT
from pipeline.execution import extra_readings, files_read
from pipeline.execution.audit import Audited, Outside, Sight
from pipeline.execution.child_process import ChildProcess, FailedError, GoneError
from pipeline.execution.extra_readings import Extra, Readings
from pipeline.execution.fork_server import ForkServer, by_command
from pipeline.execution.point_audit import Ask, PointAudit
from pipeline.execution.protocol import (
    Done,
    Echo,
    Echoed,
    Empty,
    Ended,
    Failed,
    Go,
    InputValues,
    Rate,
    Release,
    SetMode,
    Setup,
    Stamp,
    Sustain,
    Time,
    Timed,
    TimerName,
)
from pipeline.execution.workers import Owner, Workers

RATES_TIMEOUT_S = 300.0
"""Far more than the device's own limits take to measure."""

MOST_RATES = 4
"""How often a CPU's limits are measured while others have its cores."""

VERIFIER_TIMEOUT_S = 600.0
"""Far more than a reference takes."""

MOST_DELAY = 0.05
"""The share of the time for which the threads that are timed may wait for a core. Threads that meet at a
barrier wait for the last of them, so that a time may be many times too long by then."""

BUSY = "its threads had to wait for a core while it was timed"

OWN = "its own threads compute while nothing is asked of it, and take the cores that are timed"

COMPUTES = 0.5
"""The share of a core that all threads of a process want together, if it does anything."""

SPIN_S = 0.3
"""For so long threads of a runtime may spin after their work: OpenMP's of Intel for 0.2 s."""

LOOK_S, LONG_LOOK_S = 0.02, 0.3
"""Looks at a process of which nothing is asked."""

LEAST_RAN = 0.04
"""A thread that computes has this share of a core even where a dozen others want each core."""

TIMED = (Time, Stamp, Empty, Go, Sustain, Rate)
"""Requests of which a clock is read."""

MOST_WAITING = 12
"""Workers that wait for their turns at most, where providers take turns: each has a context on its GPU."""


class Supervisor:
    """Workers and a verifier on one device, replaced as often as needed. A context manager: none outlives it.

    ``root`` is the tree whose code and kernels measure: another commit's, to compare the two.
    ``heeds_load`` says that a time on a CPU is taken again once if its threads had to wait for a core, and
    then marked: that is for those who have no rounds to compare it with. ``values`` are those of
    floating-point inputs. ``in_turns`` says that providers take turns, so that their workers wait for the
    next one. ``changes`` says, by provider, what made its worker be replaced though it answered.
    """

    def __init__(
        self,
        device: Device,
        settings: TimingSettings,
        seed: int,
        timeout_s: float,
        root: Path = ROOT,
        *,
        heeds_load: bool = False,
        values: InputValues = "normal",
        in_turns: bool = False,
    ) -> None:
        self.device = device
        self._settings = settings
        self._is_here = root == ROOT
        self.heeds_load = heeds_load and device.kind == "cpu"
        self.timeout_s = timeout_s
        self.canary: Canary | None = None
        self.changes: dict[str, str] = {}
        setup = Setup(device=device.kind, settings=settings, seed=seed, values=values)
        self._server = ForkServer(device.kind, root, lambda: _environment(device))
        # Threads that spin when they have nothing to do would take the worker's cores.
        quiet = by_command(
            [sys.executable, "-m", "pipeline.execution.verifier_process", str(os.getpid())],
            root,
            lambda: _environment(device) | {"OMP_WAIT_POLICY": "passive"},
        )
        self._verifier = ChildProcess("verifier", setup, quiet)

        def launched() -> ChildProcess:
            made = ChildProcess("worker", setup, self._server.fork)
            made.launch(self._memory)
            return made

        self._workers = Workers(launched, MOST_WAITING if in_turns else 0, self._let_go)
        self._memory = -1
        self._quiet: tuple[str, load.Threads, float] | None = None
        self._audited = Audited()
        self._monitor: Monitor | None = None
        self._right: set[tuple[str, str, Values]] = set()

    def measure(self, where: str, point: Point, is_audited: bool = False) -> Outcome:
        """The outcome at a point of the kernel that ``where`` names, also when the worker does not survive
        it. A time that ``is_audited`` is audited in any case."""
        try:
            outcome = self._examined(where, point, is_audited)
            if outcome.status == "out_of_memory":
                # What earlier points left in either process, only a release makes free.
                self._release()
                outcome = self._examined(where, point, is_audited)
        except GoneError as error:
            if not self._verifier.is_running:
                # What it shared is gone with it.
                self.close()
            return Outcome(status=error.status, error=str(error))
        if outcome.status in ("ok", "verified"):
            self._right.add((where, point.provider, point.problem))
        if outcome.timing is not None:
            self._audited.add(where, point, outcome.timing.median_us)
        return outcome

    def extra(self, where: str, point: Point, seconds: float | None) -> Extra:
        """What finals ask of a point that was measured. A worker that does not survive it gives nothing."""
        self._turn_to((where, point.provider))
        try:
            found, ended = extra_readings.ask(
                Ask(self._ask_judge), Ask(self._ask_worker), where, point, self.canary, seconds
            )
        except GoneError:
            if not self._verifier.is_running:
                self.close()
            return Extra()
        self._replace_changed(point, ended)
        return found

    def readings(
        self, where: str, point: Point, timers: Sequence[TimerName], repeats: int, is_stamped: bool
    ) -> Readings:
        """Times of a point by several timers, and with ``is_stamped`` CUPTI's. A worker that does not survive
        it gives an error alone."""
        self._turn_to((where, point.provider))
        verifier, worker = Ask(self._ask_judge), Ask(self._ask_worker)
        try:
            found, ended = extra_readings.read(
                verifier, worker, where, point, self.canary, timers, repeats, is_stamped
            )
        except GoneError as error:
            if not self._verifier.is_running:
                self.close()
            return Readings(error=str(error))
        self._replace_changed(point, ended)
        return found

    def launch(self) -> None:
        """Start the verifier and a worker, which import what they need and touch no device before ``start``:
        a measurement that another command makes there is not disturbed."""
        if self._memory < 0:
            self._memory = os.memfd_create("pipeline")
        self._workers.launch()
        if not self._verifier.is_running:
            self._verifier.launch(self._memory)

    def start(self) -> None:
        """Start both now, so that they are ready when the first point is."""
        self.launch()
        self._workers.now.begin()
        self._verifier.begin()

    def keep(self, where: str, point: Point) -> None:
        """Let the worker of the point's provider wait when others have their turns: it is needed again and
        again."""
        self._workers.kept = where, point.provider

    def release(self) -> None:
        """Let go of all memory that either process holds of what it measured last."""
        if self._workers.is_running and self._verifier.is_running:
            with suppress(FailedError, GoneError):
                self._release()

    def abandon(self) -> None:
        """End both, and any that are started later, from another thread than the one that waits."""
        self._workers.abandon()
        self._verifier.abandon()

    def rates(self) -> tuple[Rates, bool]:
        """The device's own limits, and whether others had a CPU's cores whenever they were measured. Raises
        UserError when they can't be measured."""
        self._turn_to(None)
        try:
            self._workers.now.ask(Echo(token=""), Echoed, self.timeout_s)  # what it takes to start is over
            self._workers.settle()
            best, is_disturbed = self._rated()
            tries = 1
            while is_disturbed and tries < MOST_RATES:
                rates, is_disturbed = self._rated()
                best = best.at_best(rates)
                tries += 1
            return best, is_disturbed
        except (FailedError, GoneError) as error:
            raise UserError(f"the ceilings of {self.device.name} could not be measured: {error}.") from error

    def _rated(self) -> tuple[Rates, bool]:
        worker = self._workers.now
        before = worker.threads()
        rates = worker.ask(Rate(), Rates, RATES_TIMEOUT_S, self._set_mode)
        had = load.scheduled(before, worker.threads())
        return rates, self.device.kind == "cpu" and had.delay > MOST_DELAY

    def close(self) -> None:
        """End all, at once."""
        self._workers.close()
        self._verifier.close()
        self._server.close()
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = -1

    def _release(self) -> None:
        for ask in (self._ask_worker, self._ask_judge):
            ask(Release(), Done)
        for worker in self._workers.waiting():
            self._released(worker)

    def _let_go(self, worker: ChildProcess) -> None:
        """Let a worker that will be ended or waits unmap the verifier's memory on a GPU. torch keeps memory
        that it shares by CUDA IPC until a process that mapped it is done. A killed process never says so."""
        if self.device.kind == "cuda":
            self._released(worker)

    def _released(self, worker: ChildProcess) -> None:
        try:
            worker.ask(Release(), Done, self.timeout_s)
        except (FailedError, GoneError):
            worker.close()

    def _turn_to(self, owner: Owner | None) -> None:
        """Start what is not running, and let the worker be the owner's."""
        if self._quiet is not None and self._workers.is_running:
            provider, before, begin = self._quiet
            sleep(max(0.0, begin + LOOK_S - perf_counter()))
            if self._computed(before, begin) and self._computes():
                self.changes.setdefault(provider, OWN)
                self._workers.now.close()
        self._quiet = None
        self.launch()
        self._verifier.begin()
        self._workers.turn_to(owner)
        self._workers.now.begin()
        if owner is not None:
            self._workers.prepare_next()

    def _examined(self, where: str, point: Point, is_audited: bool) -> Outcome:
        self._turn_to((where, point.provider))
        begin = perf_counter()
        examination = PointAudit(
            Ask(self._ask_judge),
            Ask(self._ask_worker),
            self.device.kind,
            self._settings,
            lambda median_us: is_audited or self._audited.wants(where, point, median_us),
            Outside(self._look, len(os.sched_getaffinity(0))),
            (where, point.provider, point.problem) in self._right,
        )
        outcome = examination.outcome(where, point, self.canary)
        self._audited.took(perf_counter() - begin, examination.audit_s)
        if self._is_here:
            unkeyed = files_read.unkeyed(examination.read, where, point.provider)
            outcome = outcome.replace(unkeyed=unkeyed)
        self._replace_changed(point, examination.ended)
        return outcome

    def _look(self) -> Sight:
        """The worker's threads and the load of its device now."""
        threads, at_us = self._workers.now.threads(), perf_counter() * 1e6
        if self.device.uuid is None:
            others = load.others_running(threads) / (os.cpu_count() or 1)
            return Sight(at_us, threads, others, load.stolen())
        if self._monitor is None:
            self._monitor = Monitor(self.device.uuid)
        listed = load.on_gpu(self.device.uuid)
        neighbours = load.strangers(listed, load.family(os.getpid()), measuring=True)
        throttle = self._monitor.read().throttle
        return Sight(at_us, threads, stolen=load.stolen(), throttle=throttle, neighbours=len(neighbours))

    def _replace_changed(self, point: Point, ended: Ended) -> None:
        """End a worker in which a provider has left anything, so that its next point finds nothing of it."""
        worker = self._workers.now
        changes = [*ended.replaced, *ended.changed]
        if count := worker.left_behind():
            changes.append(f"{count} processes are running")
        if trouble := worker.trouble(self.timeout_s):
            changes.append(trouble)
        if changes:
            self.changes.setdefault(point.provider, changes[0])
            worker.close()
        elif self.device.kind == "cpu":
            self._quiet = point.provider, worker.threads(), perf_counter()

    def _computed(self, before: load.Threads, begin: float) -> bool:
        """Whether the threads of the worker have computed since a look, or would have."""
        had = load.scheduled(before, self._workers.now.threads())
        return had.ran_us + had.waited_us > COMPUTES * 1e6 * (perf_counter() - begin)

    def _computes(self) -> bool:
        """Whether they do now, though nothing is asked, and long after any work."""
        sleep(SPIN_S)
        before, begin = self._workers.now.threads(), perf_counter()
        sleep(LOOK_S)
        if not self._computed(before, begin):
            return False
        # On a busy host a thread that wakes for a moment waits for a core as long as one that computes.
        sleep(LONG_LOOK_S)
        had = load.scheduled(before, self._workers.now.threads())
        return had.ran_us > LEAST_RAN * 1e6 * (perf_counter() - begin)

    def _ask_worker(self, request: Record, kind: type[Record]) -> Record:
        if isinstance(request, TIMED):
            self._workers.settle()
        try:
            if self.heeds_load and isinstance(request, Time):
                return self._timed(request)
            return self._workers.now.ask(request, kind, self.timeout_s, self._set_mode)
        except FailedError as error:
            if not error.failed.healthy:
                self._workers.now.close()
            raise

    def _timed(self, request: Time) -> Timed:
        """A timing with what it had of the cores; one that had too little is taken again once."""
        worker = self._workers.now
        for _ in range(2):
            before = worker.threads()
            timed = worker.ask(request, Timed, self.timeout_s, self._set_mode)
            had = load.scheduled(before, worker.threads())
            if had.delay <= MOST_DELAY:
                break
        if had.ran_us == 0.0:  # this kernel does not count it
            return timed
        if had.delay > MOST_DELAY and self._computes():
            raise FailedError(Failed(status="incorrect", error=OWN))
        seen = {"run_delay": round(had.delay, 4), "involuntary_switches": had.switches}
        state = timed.state.replace(**seen)
        return timed.replace(state=state if had.delay <= MOST_DELAY else state.distrusted(BUSY))

    def _set_mode(self) -> None:
        """Set the mode of the worker's launch gap, by the verifier's work on their GPU."""
        self._verifier.ask(SetMode(), Done, VERIFIER_TIMEOUT_S)

    def _ask_judge(self, request: Record, kind: type[Record]) -> Record:
        return self._verifier.ask(request, kind, VERIFIER_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment(device: Device) -> dict[str, str]:
    """What a process that runs providers is told: no password, for what they print is kept."""
    kept = {name: value for name, value in os.environ.items() if name not in TRACKER}
    environment = WITHOUT_PLUGINS | kept | inductor.variables()
    if device.kind == "cuda":
        assert device.uuid is not None
        return environment | {"CUDA_VISIBLE_DEVICES": device.uuid}
    return environment | {"CUDA_VISIBLE_DEVICES": ""} | INTERPRETERS
