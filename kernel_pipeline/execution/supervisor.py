"""Supervise the processes that measure on a device: a worker for each provider and a verifier.

A worker is replaced when it dies or when a provider changed its process. The verifier runs no provider.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from .. import loading
from ..errors import UserError
from ..machine import load
from ..machine.device import Device
from ..machine.reaper import INTERPRETERS, WITHOUT_PLUGINS
from ..records.base import Record, Values
from ..records.ceilings import Canary, Rates
from ..records.credentials import TRACKER
from ..records.measurement import Outcome
from ..records.point import Point
from ..records.settings import TimingSettings
from ..timing.monitor import Monitor
from ..toolchain import inductor
from . import extra_readings, idle_threads
from .audit import Audited, Outside, Sight
from .child_process import ChildProcess, FailedError, GoneError
from .extra_readings import Extra, Readings
from .fork_server import ForkServer, Root, by_command
from .point_audit import Ask, PointAudit
from .protocol import (
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
from .workers import Owner, Workers

RATES_TIMEOUT_S = 300.0
"""The time limit for measuring the device's ceilings: far more than it takes."""

MOST_RATES = 4
"""The maximum number of attempts at a CPU's ceilings while other programs use its cores."""

VERIFIER_TIMEOUT_S = 600.0
"""The time limit for a request to the verifier: far more than a reference takes."""

MOST_DELAY = 0.05
"""The share of the time that timed threads may wait for a core. With more, a time may be many times too long:
threads at a barrier wait for the slowest of them."""

BUSY = "its threads had to wait for a core while it was timed"

OWN = "its own threads compute while nothing is asked of it, and take the cores that are timed"

TIMED = (Time, Stamp, Empty, Go, Sustain, Rate)
"""Requests during which a clock is read."""

MOST_WAITING = 12
"""The maximum number of workers that wait while providers take turns. Each holds a context on its GPU."""


class Supervisor:
    """Run workers and a verifier on one device and replace them as needed.

    It is a context manager: no process outlives it.

    Args:
        root: the folder of the package whose code measures. A comparison passes another tree, or variables.
        heeds_load: on a CPU, time once more if threads waited for a core; mark the time if they did again.
        values: the values of floating-point inputs.
        in_turns: providers take turns, so their workers wait for the next turn.

    ``changes`` says by provider why its worker was replaced although it answered. ``unkeyed`` returns the
    files that a provider has read and its key lacks.
    """

    def __init__(
        self,
        device: Device,
        settings: TimingSettings,
        seed: int,
        timeout_s: float,
        root: Path | Root = loading.LIBRARY.parent,
        *,
        heeds_load: bool = False,
        values: InputValues = "normal",
        in_turns: bool = False,
    ) -> None:
        self.device = device
        self._settings = settings
        self.unkeyed: Callable[[tuple[str, ...], str, str], str | None] | None = None
        self.heeds_load = heeds_load and device.kind == "cpu"
        self.timeout_s = timeout_s
        self.canary: Canary | None = None
        self.changes: dict[str, str] = {}
        setup = Setup(device=device.kind, settings=settings, seed=seed, values=values)
        self._server = ForkServer(device.kind, root, lambda: _environment(device))
        # Idle threads of the verifier must not spin: they would take the worker's cores.
        quiet = by_command(
            [sys.executable, "-m", "kernel_pipeline.execution.verifier_process", str(os.getpid())],
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
        """Measure a point of the kernel that ``where`` names. Returns an outcome also when the worker dies.

        With ``is_audited`` the time is audited in any case.
        """
        outcome = self._outcome(where, point, is_audited)
        if outcome.status == "out_of_memory":
            # The processes keep memory of earlier points until a release.
            self.release()
            outcome = self._outcome(where, point, is_audited)
        if outcome.status in ("ok", "verified"):
            self._right.add((where, point.provider, point.problem))
        if outcome.timing is not None:
            self._audited.add(where, point, outcome.timing.median_us)
        return outcome

    def extra(self, where: str, point: Point, seconds: float | None) -> Extra:
        """Take the extra readings of finals at a measured point. Returns none if the worker dies."""
        self._turn_to((where, point.provider))
        try:
            found, ended = extra_readings.ask(
                Ask(self._ask_verifier), Ask(self._ask_worker), where, point, self.canary, seconds
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
        """Time a point by several timers, and with ``is_stamped`` also by CUPTI.

        Returns only an error if the worker dies.
        """
        self._turn_to((where, point.provider))
        verifier, worker = Ask(self._ask_verifier), Ask(self._ask_worker)
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
        """Start the verifier and a worker. Both only import, and do not touch the device before ``start``.

        So a measurement of another command on the device is not disturbed.
        """
        if self._memory < 0:
            self._memory = os.memfd_create("pipeline")
        self._workers.launch()
        if not self._verifier.is_running:
            self._verifier.launch(self._memory)

    def start(self) -> None:
        """Let the verifier and a worker prepare the device, before the first point is ready."""
        self.launch()
        self._workers.now.begin()
        self._verifier.begin()

    def keep(self, where: str, point: Point) -> None:
        """Keep the worker of the point's provider while others take their turns: it is needed repeatedly."""
        self._workers.kept = where, point.provider

    def release(self) -> None:
        """Free all memory that the processes hold of their last points."""
        if self._workers.is_running:
            self._released(self._workers.now)
        for worker in self._workers.waiting():
            self._released(worker)
        if self._verifier.is_running:
            self._released(self._verifier)

    def abandon(self) -> None:
        """End all processes, and any that are started later. May be called from another thread."""
        self._workers.abandon()
        self._verifier.abandon()

    def rates(self) -> tuple[Rates, bool]:
        """Measure the device's ceilings.

        Returns them, and whether other programs used a CPU's cores in each attempt.
        Raises UserError when they can't be measured.
        """
        self._turn_to(None)
        try:
            self._workers.now.ask(Echo(token=""), Echoed, self.timeout_s)  # its start-up is over
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
        """End all processes at once."""
        self._workers.close()
        self._verifier.close()
        self._server.close()
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = -1

    def _let_go(self, worker: ChildProcess, most_bytes: int = 0) -> None:
        """On a GPU, let a worker unmap the verifier's memory before it ends or waits, and free its own unless
        it may keep that: the GPU can't use memory again that a process still maps.
        """
        if self.device.kind == "cuda":
            self._released(worker, most_bytes)

    def _released(self, one: ChildProcess, most_bytes: int = 0) -> None:
        timeout_s = VERIFIER_TIMEOUT_S if one is self._verifier else self.timeout_s
        try:
            one.ask(Release(most_bytes=most_bytes), Done, timeout_s)
        except (FailedError, GoneError):
            self.close() if one is self._verifier else one.close()

    def _turn_to(self, owner: Owner | None) -> None:
        """Start the processes that do not run, and make the owner's worker the current one."""
        if self._quiet is not None and self._workers.is_running:
            provider, before, begin = self._quiet
            if idle_threads.have_computed(self._workers.now, before, begin):
                self.changes.setdefault(provider, OWN)
                self._workers.now.close()
        self._quiet = None
        self.launch()
        self._verifier.begin()
        self._workers.turn_to(owner)
        self._workers.now.begin()
        if owner is not None:
            self._workers.prepare_next()

    def _outcome(self, where: str, point: Point, is_audited: bool) -> Outcome:
        """Return a point's outcome, also when a process ended."""
        try:
            return self._examined(where, point, is_audited)
        except GoneError as error:
            if not self._verifier.is_running:
                # The memory that it shared is gone with it, so the workers end, too.
                self.close()
            return Outcome(status=error.status, error=str(error))

    def _examined(self, where: str, point: Point, is_audited: bool) -> Outcome:
        self._turn_to((where, point.provider))
        begin = perf_counter()
        audit = PointAudit(
            Ask(self._ask_verifier),
            Ask(self._ask_worker),
            self.device.kind,
            self._settings,
            lambda median_us: is_audited or self._audited.wants(where, point, median_us),
            Outside(self._look, len(os.sched_getaffinity(0))),
            (where, point.provider, point.problem) in self._right,
        )
        outcome = audit.outcome(where, point, self.canary)
        self._audited.took(perf_counter() - begin, audit.audit_s)
        if self.unkeyed is not None:
            outcome = outcome.replace(unkeyed=self.unkeyed(audit.read, where, point.provider))
        self._replace_changed(point, audit.ended)
        return outcome

    def _look(self) -> Sight:
        """Return the worker's threads and the load of its device now."""
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
        """End the worker if the provider changed its process or left processes or threads in it."""
        worker = self._workers.now
        if ended.compiles:
            self._server.import_compiler()
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
        """Time on a CPU, and record how long threads waited for a core. Time once more if it was too long."""
        worker = self._workers.now
        for _ in range(2):
            before = worker.threads()
            timed = worker.ask(request, Timed, self.timeout_s, self._set_mode)
            had = load.scheduled(before, worker.threads())
            if had.delay <= MOST_DELAY:
                break
        if had.ran_us == 0.0:  # this Linux kernel does not count it
            return timed
        if had.delay > MOST_DELAY and idle_threads.compute(self._workers.now):
            raise FailedError(Failed(status="incorrect", error=OWN))
        seen = {"run_delay": round(had.delay, 4), "involuntary_switches": had.switches}
        state = timed.state.replace(**seen)
        return timed.replace(state=state if had.delay <= MOST_DELAY else state.distrusted(BUSY))

    def _set_mode(self) -> None:
        """Set the mode of the worker's launch gap: the verifier does a little work on their GPU."""
        self._verifier.ask(SetMode(), Done, VERIFIER_TIMEOUT_S)

    def _ask_verifier(self, request: Record, kind: type[Record]) -> Record:
        return self._verifier.ask(request, kind, VERIFIER_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment(device: Device) -> dict[str, str]:
    """Return the environment variables of the processes, without passwords, because the output of providers
    is kept."""
    kept = {name: value for name, value in os.environ.items() if name not in TRACKER}
    environment = WITHOUT_PLUGINS | kept | inductor.variables()
    if device.kind == "cuda":
        assert device.uuid is not None
        return environment | {"CUDA_VISIBLE_DEVICES": device.uuid}
    return environment | {"CUDA_VISIBLE_DEVICES": ""} | INTERPRETERS
