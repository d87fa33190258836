"""What runs on a host of a cluster, once for each device: it builds, compiles and supervises there.

A station is told what to do by the sweep, in JSON, one request at a time, and keeps no rows. It ends with the
process that holds it, and with it all that it has started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic

import kernels
from kernels.contract import ContractError
from pipeline import ROOT, UserError
from pipeline.cluster.errand import RunningErrand
from pipeline.cluster.messages import (
    AddedPoints,
    Assignment,
    Described,
    Digests,
    Errand,
    MeasuredRates,
    NumberedOutcome,
    StationOutcomes,
    Steady,
)
from pipeline.cluster.tree import installed
from pipeline.execution import controls
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.identity import Identity
from pipeline.execution.supervisor import Supervisor
from pipeline.execution.team import built
from pipeline.machine import device, environment, lock
from pipeline.machine.lock import DeviceLock
from pipeline.points.point import Point
from pipeline.store.files import write_atomically
from pipeline.store.results import LOCAL

BATCH_S = 0.1
"""A station goes on for so long before it answers, while it has points that are compiled: a question takes
1 ms on its way, and a short point 25."""


class Station:
    """One device of this host. ``assignment`` is an ``Assignment``."""

    def __init__(self, assignment: str) -> None:
        self._told = Assignment.model_validate_json(assignment)
        self._stack = ExitStack()
        self._supervisor: Supervisor | None = None
        self._ahead: dict[str, Ahead] = {}
        self._points: dict[int, Point] = {}
        self._provider: str | None = None  # whose process is there
        self._audited: set[int] = set()
        self._errand: RunningErrand | None = None

    def describe(self) -> str:
        """A ``Described``; the first that is asked. What measures starts meanwhile, if the device is free.
        Raises UserError where nothing can be measured."""
        take_flags(self._told.flags)
        # A CPU is this checkout's, wherever a copy of it lies.
        write_atomically(LOCAL / "host", self._told.drawn.encode())
        keep_builds(ROOT)
        self._device = _device(self._told.kind)
        if self._told.measures:
            with suppress(UserError):  # another command has it: then it is waited for once this one is wanted
                self.begin(0.0)
        self._environment = environment.fingerprint(self._device)
        self._compilers = self._stack.enter_context(Compilers(self._environment.compute_capability))
        missing = []
        for where in self._told.kernels:
            try:
                kernels.load(where)
            except (KeyError, FileNotFoundError):
                missing.append(where)
            except ContractError as error:
                raise UserError(str(error)) from error
        return Described(
            device=self._device,
            gpu=device.capabilities(self._device),
            environment=self._environment,
            packages=installed(self._told.packages),
            missing=tuple(missing),
        ).model_dump_json()

    def digests(self, where: str) -> str:
        """The ``Digests`` of a kernel's points if they were measured here."""
        identity = Identity(kernels.load(where), self._environment, self._told.settings, self._told.seed)
        return digests(identity).model_dump_json()

    def begin(self, wait_s: float | None) -> None:
        """Take the device, and start what measures on it, unless that has been done. Raises UserError where
        another command has it for longer than ``wait_s`` seconds."""
        if self._supervisor is not None:
            return
        self._stack.enter_context(DeviceLock(self._device, wait_s, lambda sentence: None))
        self._supervisor = self._stack.enter_context(
            Supervisor(
                self._device, self._told.settings, self._told.seed, self._told.timeout_s, heeds_load=True
            )
        )
        self._supervisor.start()

    def rates(self) -> str:
        """The device's own ``MeasuredRates``."""
        rates, is_disturbed = self._running.rates()
        return MeasuredRates(rates=rates, is_disturbed=is_disturbed).model_dump_json()

    def build(self, where: str, providers: list[str]) -> dict[str, str]:
        """Build what providers need, unless another device's station on this host has; why some are not."""
        return built(kernels.load(where), providers)

    def measure(self, wanted: str) -> str:
        """Take the points of ``AddedPoints`` beside those that are here, and measure those that are compiled
        for ``BATCH_S``, one at least; the others are compiled meanwhile. Returns ``StationOutcomes``."""
        begin = monotonic()
        told = AddedPoints.model_validate_json(wanted)
        running = self._running
        running.canary = told.canary
        self._points |= told.points
        self._audited.update(told.audited)
        futures = self._compiling(told.where, told.points.values())
        found: list[NumberedOutcome] = []
        while self._points and (not found or monotonic() - begin < BATCH_S):
            number = _first_compiled(self._points, futures, self._provider)
            if number is None:
                if found:
                    break
                wait([futures[point] for point in self._points.values()], return_when=FIRST_COMPLETED)
                continue
            is_audited = number in self._audited
            self._audited.discard(number)
            point = self._points.pop(number)
            self._provider = point.provider
            outcome = running.measure(told.where, point, is_audited)
            found.append(NumberedOutcome(number=number, outcome=outcome))
        changes = dict(running.changes)
        running.changes.clear()
        return StationOutcomes(found=tuple(found), changes=changes).model_dump_json()

    def control(self, where: str, point: str) -> str:
        """Measure the control point once. Returns a ``Steady``."""
        found = controls.control(self._running, where, Point.model_validate_json(point))
        return Steady(
            us=found.us,
            ticks=found.stolen.ticks,
            of_ticks=found.stolen.of,
            neighbours=found.neighbours,
        ).model_dump_json()

    def start(self, errand: str, files: dict[str, bytes]) -> None:
        """Run an ``Errand`` instead, with these files in its output folder. It takes the device itself."""
        told = Errand.model_validate_json(errand)
        self._errand = RunningErrand(told, self._device, self._told.drawn, files)

    def news(self, seconds: float) -> tuple[str, dict[str, bytes], dict[str, bytes]]:
        """What the errand has said and written since, as ``RunningErrand.news`` gives it."""
        assert self._errand is not None, "it is started before it is asked"
        return self._errand.news(seconds)

    @property
    def _running(self) -> Supervisor:
        assert self._supervisor is not None, "it begins before it measures"
        return self._supervisor

    def _compiling(self, where: str, points: Iterable[Point]) -> Mapping[Point, Future[None]]:
        """Begin to compile those of the points that are compiled ahead; the futures of all that were."""
        if where not in self._ahead:
            self._ahead[where] = Ahead(kernels.load(where), self._compilers)
        futures = self._ahead[where].futures
        self._ahead[where].submit(points)
        return futures


def _first_compiled(
    points: Mapping[int, Point], futures: Mapping[Point, Future[None]], provider: str | None
) -> int | None:
    """The number of the first point that need not wait for its compiler, if possible of that provider, whose
    process is there."""
    ready = [number for number, point in points.items() if point not in futures or futures[point].done()]
    return next((one for one in ready if points[one].provider == provider), next(iter(ready), None))


def digests(identity: Identity) -> Digests:
    """What keys cover of all providers of a kernel."""
    names = [provider.name for provider in identity.loaded.kernel.providers]
    return Digests(
        measurement=identity.measurement,
        source={name: identity.source(name) for name in names},
        environment={name: identity.relevant_environment(name) for name in names},
    )


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


def _device(kind: str) -> device.Device:
    """The processor, or the GPU that Ray gave this process, by its number on the host."""
    if kind == "cpu":
        return device.cpu()
    found = device.gpus()
    if not found:
        raise UserError("it has no NVIDIA driver, or its GPU is gone.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return found[0].model_copy(update={"index": int(visible)}) if visible.isdigit() else found[0]
