"""What runs on a host of a cluster, once for each device, as a Ray actor: it builds, compiles and measures.
It keeps no rows. With its process ends all that it has started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from pipeline import ROOT, UserError
from pipeline.execution import controls
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.controls import Control
from pipeline.execution.identity import Identity
from pipeline.execution.schedule import Schedule
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device, environment, lock
from pipeline.machine.device import Device
from pipeline.machine.lock import DeviceLock
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.ceilings import Canary, Rates
from pipeline.store.environment import Environment
from pipeline.store.files import write_atomically
from pipeline.store.record import Outcome
from pipeline.store.results import LOCAL
from pipeline.timing.settings import TimingSettings


@dataclass(frozen=True)
class Assignment:
    """How a command's points are measured. ``flags`` are the variables of the command's own process that
    change results: those of the hosts don't count. ``drawn`` tells the command's checkout from others."""

    kind: str
    settings: TimingSettings
    seed: int
    timeout_s: float
    wait_s: float | None
    kernels: tuple[str, ...]
    flags: dict[str, str]
    drawn: str


@dataclass(frozen=True)
class StationHost:
    """What a station finds on its host. By kernel: the digest of its ``code``, and what each provider feels
    of the environment."""

    device: Device
    gpu: Gpu | None
    environment: Environment
    code: dict[str, str]
    felt: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Chunk:
    """Points of a kernel to measure, with those that come next, which are compiled meanwhile. The times of
    those that are ``audited`` are audited in any case. ``control`` is measured first."""

    where: str
    points: Sequence[Point]
    next: Sequence[Point] = ()
    audited: frozenset[Point] = field(default_factory=frozenset)
    control: Point | None = None
    canary: Canary | None = None


Answer = Control | tuple[Point, Outcome] | dict[str, str] | None
"""Of a chunk a station gives the control point's time or None, each point as it is measured, and in the end
what made workers be replaced though they answered, by provider."""


class Station:
    """One device of this host."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._ahead: dict[str, Ahead] = {}

    def begin(self, told: Assignment) -> StationHost:
        """Take the device, and start what measures on it. Raises UserError where that can't be done."""
        take_flags(told.flags)
        # A CPU is this checkout's, wherever a copy of it lies.
        write_atomically(LOCAL / "host", told.drawn.encode())
        keep_builds(ROOT)
        chosen = _device(told.kind)
        self._stack.enter_context(DeviceLock(chosen, told.wait_s, lambda sentence: None))
        self._supervisor = self._stack.enter_context(
            Supervisor(chosen, told.settings, told.seed, told.timeout_s, heeds_load=True)
        )
        self._supervisor.start()
        here = environment.fingerprint(chosen)
        self._compilers = self._stack.enter_context(Compilers(here.compute_capability))
        code, felt = {}, {}
        for where in told.kernels:
            identity = Identity(loading.load(where), here, told.settings, told.seed)
            code[where] = code_of(identity)
            providers = identity.loaded.kernel.providers
            felt[where] = {one.name: identity.relevant_environment(one.name) for one in providers}
        return StationHost(chosen, device.capabilities(chosen), here, code, felt)

    def rates(self) -> tuple[Rates, bool]:
        """The device's own limits, as ``Supervisor.rates`` gives them."""
        return self._supervisor.rates()

    def measure(self, chunk: Chunk) -> Iterator[Answer]:
        """Measure the points of a chunk; what is compiled comes first."""
        supervisor = self._supervisor
        supervisor.canary = chunk.canary
        supervisor.changes.clear()
        if chunk.where not in self._ahead:
            self._ahead[chunk.where] = Ahead(loading.load(chunk.where), self._compilers)
        ahead = self._ahead[chunk.where]
        ahead.submit([*chunk.points, *chunk.next])
        if supervisor.device.kind == "cpu":  # what is timed there shares its cores with no compiler
            self._compilers.wait()
        yield None if chunk.control is None else controls.control(supervisor, chunk.where, chunk.control)
        schedule = Schedule(chunk.points, ahead.futures)
        while (point := schedule.next(0)) is not None:
            why = schedule.failure(point)
            if why is None:
                yield point, supervisor.measure(chunk.where, point, point in chunk.audited)
            else:
                yield point, Outcome(status="compile_error", error=why)
        yield dict(supervisor.changes)


def code_of(identity: Identity) -> str:
    """The digest of what measures and of all providers' sources."""
    sources = [identity.source(provider.name) for provider in identity.loaded.kernel.providers]
    return digest([identity.measurement, sources])


def take_flags(flags: dict[str, str]) -> None:
    """Let the variables that change results be these alone: a host's own, and what Ray sets itself
    (OMP_NUM_THREADS), would make another environment of each host."""
    for name in environment.flags("cpu").keys() - flags.keys():
        del os.environ[name]
    os.environ.update(flags)


def keep_builds(root: Path) -> None:
    """Let what is built outlast the copy of the tree at ``root``, so that a host builds a source once. A
    library is used only where its manifest fits."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = lock.own_folder(cache / "kernel-pipeline", "libraries in it are loaded; remove it") / "build"
    kept.mkdir(exist_ok=True)
    with suppress(FileExistsError):  # another device's station was first
        (root / "build").symlink_to(kept, target_is_directory=True)


def _device(kind: str) -> Device:
    """The processor, or the GPU that Ray gave this process, by its number on the host."""
    if kind == "cpu":
        return device.cpu()
    found = device.gpus()
    if not found:
        raise UserError("it has no NVIDIA driver, or its GPU is gone.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return found[0].model_copy(update={"index": int(visible)}) if visible.isdigit() else found[0]
