"""The two processes that measure on a device, from outside: a worker that runs providers and is replaced when
it dies or was changed, and a judge that runs none."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from pipeline import ROOT, UserError
from pipeline.execution import files_read, finalist, readings
from pipeline.execution.audit import Audited, Outside, Sight
from pipeline.execution.examination import Ask, Examination
from pipeline.execution.finalist import Extra
from pipeline.execution.partner import FailedError, GoneError, Partner
from pipeline.execution.protocol import (
    Done,
    Echo,
    Echoed,
    Ended,
    InputValues,
    Rate,
    Release,
    SetMode,
    Setup,
    Time,
    Timed,
    TimerName,
)
from pipeline.execution.readings import Readings
from pipeline.machine import load
from pipeline.machine.device import Device
from pipeline.machine.process import INTERPRETERS, WITHOUT_PLUGINS, under_warden
from pipeline.points.frozen import Record, Values
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary, Rates
from pipeline.store.credentials import TRACKER
from pipeline.store.record import Outcome
from pipeline.timing.monitor import Monitor
from pipeline.timing.settings import TimingSettings
from pipeline.toolchain import inductor

RATES_TIMEOUT_S = 300.0
"""Far more than the device's own limits take to measure."""

MOST_RATES = 4
"""How often a CPU's limits are measured while others have its cores."""

JUDGE_TIMEOUT_S = 600.0
"""Far more than a reference takes."""

MOST_DELAY = 0.05
"""The share of the time for which the threads that are timed may wait for a core. Threads that meet at a
barrier wait for the last of them, so that a time may be many times too long by then."""

BUSY = "its threads had to wait for a core while it was timed"


class Supervisor:
    """A worker and a judge on one device, replaced as often as needed. A context manager: none outlives it.

    ``root`` is the tree whose code and kernels measure: another commit's, to compare the two.
    ``heeds_load`` says that a time on a CPU is taken again once if its threads had to wait for a core, and
    then marked: that is for those who have no rounds to compare it with. ``compiles`` says that points of
    torch.compile are to come. ``values`` are those of floating-point inputs. ``changes`` says, by provider,
    what made its worker be replaced though it answered.
    """

    def __init__(
        self,
        device: Device,
        settings: TimingSettings,
        seed: int,
        timeout_s: float,
        root: Path = ROOT,
        heeds_load: bool = False,
        compiles: bool = False,
        values: InputValues = "normal",
    ) -> None:
        self.device = device
        self._settings = settings
        self._is_here = root == ROOT
        self.heeds_load = heeds_load and device.kind == "cpu"
        self.timeout_s = timeout_s
        self._words = ["compiles"] * compiles
        self.canary: Canary | None = None
        self.changes: dict[str, str] = {}
        setup = Setup(device=device.kind, settings=settings, seed=seed, values=values)
        self._worker = Partner("worker", setup, root, lambda: _environment(device))
        # Threads that spin when they have nothing to do would take the worker's cores.
        self._judge = Partner(
            "judge", setup, root, lambda: _environment(device) | {"OMP_WAIT_POLICY": "passive"}
        )
        self._memory = -1
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
            if not self._judge.is_running:
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
        self.start()
        try:
            found, ended = finalist.ask(
                Ask(self._ask_judge), Ask(self._ask_worker), where, point, self.canary, seconds
            )
        except GoneError:
            if not self._judge.is_running:
                self.close()
            return Extra()
        self._replace_changed(point, ended)
        return found

    def readings(
        self, where: str, point: Point, timers: Sequence[TimerName], repeats: int, is_stamped: bool
    ) -> Readings:
        """Times of a point by several timers, and with ``is_stamped`` CUPTI's. A worker that does not survive
        it gives an error alone."""
        self.start()
        judge, worker = Ask(self._ask_judge), Ask(self._ask_worker)
        try:
            found, ended = readings.read(
                judge, worker, where, point, self.canary, timers, repeats, is_stamped
            )
        except GoneError as error:
            if not self._judge.is_running:
                self.close()
            return Readings(error=str(error))
        self._replace_changed(point, ended)
        return found

    def launch(self) -> None:
        """Start the processes of both, which import what they need and touch no device before ``start``:
        who measures on that is not disturbed."""
        if self._memory < 0:
            self._memory = os.memfd_create("pipeline")
        if not self._worker.is_running:
            # Through a warden, which ends whatever the provider has started.
            command = under_warden([sys.executable, "-m", "pipeline.execution.worker", *self._words])
            self._worker.launch(command, self._memory)
        if not self._judge.is_running:
            command = [sys.executable, "-m", "pipeline.execution.judging", str(os.getpid())]
            self._judge.launch(command, self._memory)

    def start(self) -> None:
        """Start both now, so that they are ready when the first point is."""
        self.launch()
        self._worker.begin()
        self._judge.begin()

    def release(self) -> None:
        """Let go of all memory that either process holds of what it measured last."""
        if self._worker.is_running and self._judge.is_running:
            with suppress(FailedError, GoneError):
                self._release()

    def abandon(self) -> None:
        """End both from another thread, and any that are started later; the thread that waits for an answer
        learns that they are gone."""
        self._worker.abandon()
        self._judge.abandon()

    def rates(self) -> tuple[Rates, bool]:
        """The device's own limits, and whether others had a CPU's cores whenever they were measured. Raises
        UserError when they can't be measured."""
        self.start()
        try:
            self._worker.ask(Echo(token=""), Echoed, self.timeout_s)  # what it takes to start is over
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
        before = self._worker.threads()
        rates = self._worker.ask(Rate(), Rates, RATES_TIMEOUT_S, self._set_mode)
        had = load.scheduled(before, self._worker.threads())
        return rates, self.device.kind == "cpu" and had.delay > MOST_DELAY

    def close(self) -> None:
        """End both, at once."""
        self._worker.close()
        self._judge.close()
        if self._memory >= 0:
            os.close(self._memory)
        self._memory = -1

    def _release(self) -> None:
        for ask in (self._ask_worker, self._ask_judge):
            ask(Release(), Done)

    def _examined(self, where: str, point: Point, is_audited: bool) -> Outcome:
        self.start()
        begin = perf_counter()
        examination = Examination(
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
            outcome = outcome.model_copy(update={"unkeyed": unkeyed})
        self._replace_changed(point, examination.ended)
        return outcome

    def _look(self) -> Sight:
        """What can be seen of the worker and its device now."""
        threads, at_us = self._worker.threads(), perf_counter() * 1e6
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
        """End a worker in which a provider has left anything, so that nobody comes after it there."""
        changes = [*ended.replaced, *ended.changed]
        if count := self._worker.left_behind():
            changes.append(f"{count} processes are running")
        if trouble := self._worker.trouble(self.timeout_s):
            changes.append(trouble)
        if changes:
            self.changes.setdefault(point.provider, changes[0])
            self._worker.close()

    def _ask_worker(self, request: Record, kind: type[Record]) -> Record:
        try:
            if self.heeds_load and isinstance(request, Time):
                return self._timed(request)
            return self._worker.ask(request, kind, self.timeout_s, self._set_mode)
        except FailedError as error:
            if not error.failed.healthy:
                self._worker.close()
            raise

    def _timed(self, request: Time) -> Timed:
        """A timing with what it had of the cores; one that had too little is taken again once."""
        for _ in range(2):
            before = self._worker.threads()
            timed = self._worker.ask(request, Timed, self.timeout_s, self._set_mode)
            had = load.scheduled(before, self._worker.threads())
            if had.delay <= MOST_DELAY:
                break
        if had.ran_us == 0.0:  # this kernel does not count it
            return timed
        seen = {"run_delay": round(had.delay, 4), "involuntary_switches": had.switches}
        state = timed.state.model_copy(update=seen)
        return timed.model_copy(
            update={"state": state if had.delay <= MOST_DELAY else state.distrusted(BUSY)}
        )

    def _set_mode(self) -> None:
        """Set the mode of the worker's launch gap, by the judge's work on their GPU."""
        self._judge.ask(SetMode(), Done, JUDGE_TIMEOUT_S)

    def _ask_judge(self, request: Record, kind: type[Record]) -> Record:
        return self._judge.ask(request, kind, JUDGE_TIMEOUT_S)

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
