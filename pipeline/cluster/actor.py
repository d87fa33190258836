"""The actor on a device of a cluster's host: it builds, compiles and measures, and keeps no rows."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.execution.compile_pool import Ahead, Compilers
from kernel_pipeline.files import LOCAL, write_atomically
from kernel_pipeline.machine import device, fingerprint, lock
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

from .. import ROOT
from ..execution import controls
from ..execution.controls import Control
from ..execution.schedule import Schedule
from ..execution.session import supervisor
from ..execution.worker_pool import DeviceTime, outcome_of
from ..keys.identity import Identity


@dataclass(frozen=True)
class Assignment:
    """A command's settings for its actors. ``flags`` are the variables of the command's process that change
    results. ``drawn`` identifies the command's checkout, to which a CPU's rows belong."""

    kind: str
    settings: TimingSettings
    seed: int
    timeout_s: float
    wait_s: float | None
    kernels: tuple[str, ...]
    flags: dict[str, str]
    drawn: str


@dataclass(frozen=True)
class ActorHost:
    """An actor's device and environment, and by kernel the parts of the environment that each provider's
    times depend on."""

    device: Device
    gpu: Gpu | None
    environment: Environment
    relevant: dict[str, dict[str, str]]


@dataclass(frozen=True)
class ChunkEnd:
    """A chunk's last answer: why workers were replaced, by provider, and the device's time."""

    changes: dict[str, str]
    spent: DeviceTime


Answer = Control | tuple[Point, Outcome] | ChunkEnd | None
"""A chunk's answers: the control point's time or None, each point's outcome, and at last the chunk's end."""


class DeviceActor:
    """One device of this host. ``begin`` locks the device and starts the processes that measure."""

    def __init__(self, assignment: Assignment) -> None:
        self._wanted = assignment
        self._stack = ExitStack()
        self._ahead: dict[str, Ahead] = {}

    def begin(self) -> ActorHost:
        """Lock the device and start its worker. Raises UserError if that fails."""
        wanted = self._wanted
        # A host's own variables, and Ray's OMP_NUM_THREADS, would give each host another environment.
        for name in fingerprint.flags("cpu").keys() - wanted.flags.keys():
            del os.environ[name]
        os.environ.update(wanted.flags)
        write_atomically(LOCAL / "host", wanted.drawn.encode())
        # Builds outlive this copy of the tree. A library is used only if its manifest matches.
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        kept = lock.own_folder(cache / "kernel-pipeline", "libraries in it are loaded; remove it") / "build"
        kept.mkdir(exist_ok=True)
        with suppress(FileExistsError):  # another device's actor was first
            (ROOT / "build").symlink_to(kept, target_is_directory=True)
        chosen = device.resolve(wanted.kind)
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES", "")).isdigit():  # the GPU that Ray assigned
            chosen = chosen.replace(index=int(visible))
        self._stack.enter_context(lock.DeviceLock(chosen, wanted.wait_s, lambda sentence: None))
        self._supervisor = self._stack.enter_context(
            supervisor(chosen, wanted.settings, wanted.seed, wanted.timeout_s, heeds_load=True)
        )
        self._supervisor.start()
        here = fingerprint.fingerprint(chosen)
        self._compilers = self._stack.enter_context(Compilers(here.compute_capability))
        relevant = {}
        for where in wanted.kernels:
            loaded = loading.load(where)
            self._ahead[where] = Ahead(loaded, self._compilers)
            own = Identity(loaded, here, wanted.settings, wanted.seed)
            names = [one.name for one in loaded.kernel.providers]
            relevant[where] = {name: own.relevant_environment(name) for name in names}
        return ActorHost(chosen, device.capabilities(chosen), here, relevant)

    def rates(self) -> tuple[Rates, bool]:
        """Measure the device's ceilings, as ``Supervisor.rates`` does."""
        return self._supervisor.rates()

    def measure(
        self,
        where: str,
        points: Sequence[Point],
        following: Sequence[Point],
        audited: Container[Point],
        control: Point | None,
        canary: Canary | None,
    ) -> Iterator[Answer]:
        """Compile and measure a chunk of a kernel's points after the control point. Compiles the following
        points meanwhile."""
        supervisor, ahead = self._supervisor, self._ahead[where]
        supervisor.canary = canary
        supervisor.changes.clear()
        time = DeviceTime()
        ahead.submit([*points, *following])
        if supervisor.device.kind == "cpu":  # compilers would share the cores with the timed points
            with time.spent("compiling_s"):
                self._compilers.wait()
        with time.spent("measuring_s"):
            found = None if control is None else controls.control(supervisor, where, control)
        yield found
        schedule = Schedule(points, ahead.futures)
        while True:
            with time.spent("compiling_s"):
                point = schedule.next(0)
            if point is None:
                break
            with time.spent("measuring_s"):
                outcome = outcome_of(supervisor, where, point, schedule.failure(point), audited)
            time.points += 1
            yield point, outcome
        yield ChunkEnd(dict(supervisor.changes), time)
