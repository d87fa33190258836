"""The actor on a device of a cluster's host: it builds, compiles and measures, and keeps no rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernel_pipeline import loading
from kernel_pipeline.contract import Gpu
from kernel_pipeline.errors import UserError
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device, lock
from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Outcome
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline import ROOT
from pipeline.execution import controls
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.controls import Control
from pipeline.execution.identity import Identity
from pipeline.execution.schedule import Schedule
from pipeline.execution.supervisor import Supervisor
from pipeline.store.results import LOCAL


@dataclass(frozen=True)
class Assignment:
    """A command's settings for its actors. ``flags`` are the variables of the command's process that change
    results, in place of the hosts'. ``drawn`` identifies the command's checkout, of which a CPU's rows
    are."""

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
    """An actor's device and environment, the digest of its kernels' ``code``, and each provider's
    ``relevant`` environment by kernel."""

    device: Device
    gpu: Gpu | None
    environment: Environment
    code: str
    relevant: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Chunk:
    """Points of a kernel to measure after the ``control`` point, and the ``next`` points to compile
    meanwhile. The times of ``audited`` points are audited in any case."""

    where: str
    points: Sequence[Point]
    next: Sequence[Point] = ()
    audited: frozenset[Point] = field(default_factory=frozenset)
    control: Point | None = None
    canary: Canary | None = None


Answer = Control | tuple[Point, Outcome] | dict[str, str] | None
"""A chunk's answers: the control point's time or None, each point's outcome, and at last the reasons for
replaced workers, by provider."""


class DeviceActor:
    """One device of this host, which takes the device and starts measuring processes when it is asked
    first."""

    def __init__(self, assignment: Assignment) -> None:
        self._wanted = assignment
        self._stack = ExitStack()
        self._ahead: dict[str, Ahead] = {}

    def begin(self) -> ActorHost:
        """Lock the device and start its worker. Raises UserError where that fails."""
        wanted = self._wanted
        take_flags(wanted.flags)
        write_atomically(LOCAL / "host", wanted.drawn.encode())
        keep_builds(ROOT)
        chosen = _device(wanted.kind)
        self._stack.enter_context(DeviceLock(chosen, wanted.wait_s, lambda sentence: None))
        self._supervisor = self._stack.enter_context(
            Supervisor(chosen, wanted.settings, wanted.seed, wanted.timeout_s, heeds_load=True)
        )
        self._supervisor.start()
        here = environment.fingerprint(chosen)
        self._compilers = self._stack.enter_context(Compilers(here.compute_capability))
        kernels = {
            where: Identity(loading.load(where), here, wanted.settings, wanted.seed)
            for where in wanted.kernels
        }
        relevant = {
            where: {one.name: kernel.relevant_environment(one.name) for one in kernel.loaded.kernel.providers}
            for where, kernel in kernels.items()
        }
        code = code_of(kernels.values())
        return ActorHost(chosen, device.capabilities(chosen), here, code, relevant)

    def rates(self) -> tuple[Rates, bool]:
        """The device's own limits, as ``Supervisor.rates`` gives them."""
        return self._supervisor.rates()

    def measure(self, chunk: Chunk) -> Iterator[Answer]:
        """Compile and measure the points of a chunk."""
        supervisor = self._supervisor
        supervisor.canary = chunk.canary
        supervisor.changes.clear()
        if chunk.where not in self._ahead:
            self._ahead[chunk.where] = Ahead(loading.load(chunk.where), self._compilers)
        ahead = self._ahead[chunk.where]
        ahead.submit([*chunk.points, *chunk.next])
        if supervisor.device.kind == "cpu":  # compilers would share the cores with the timed points
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


def code_of(kernels: Iterable[Identity]) -> str:
    """The digest of the measuring code and of all providers' sources."""
    return digest(
        [
            (one.measurement, [one.source(provider.name) for provider in one.loaded.kernel.providers])
            for one in kernels
        ]
    )


def take_flags(flags: dict[str, str]) -> None:
    """Replace this process's variables that change results: a host's own, and Ray's OMP_NUM_THREADS, would
    give each host another environment."""
    for name in environment.flags("cpu").keys() - flags.keys():
        del os.environ[name]
    os.environ.update(flags)


def keep_builds(root: Path) -> None:
    """Keep builds beyond the copy of the tree at ``root``, so that a host builds a source once. A library is
    used only where its manifest fits."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = lock.own_folder(cache / "kernel-pipeline", "libraries in it are loaded; remove it") / "build"
    kept.mkdir(exist_ok=True)
    with suppress(FileExistsError):  # another device's actor was first
        (root / "build").symlink_to(kept, target_is_directory=True)


def _device(kind: str) -> Device:
    """The processor, or the GPU that Ray gave this process, by its number on the host."""
    if kind == "cpu":
        return device.cpu()
    found = device.gpus()
    if not found:
        raise UserError("it has no NVIDIA driver, or its GPU is gone.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return found[0].replace(index=int(visible)) if visible.isdigit() else found[0]
