"""Who measures a sweep: workers on devices of one model, here or elsewhere."""

from __future__ import annotations

from collections.abc import Container, Sequence
from types import TracebackType
from typing import Protocol, Self

from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from pipeline.execution.compile_pool import Ahead, Compilers
from pipeline.execution.identity import Identity
from pipeline.execution.supervisor import Supervisor
from pipeline.execution.worker_pool import Report, WorkerPool


class DeviceGroup(Protocol):
    """The devices of one model that share a sweep, and what measures on each."""

    environment: Environment

    @property
    def devices(self) -> Sequence[Device]:
        """They, in their order."""

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """The keys that a kernel's points have on the devices."""

    def begin(self) -> None:
        """Start what is not running yet; of what changed workers before, nothing is known any more."""

    def rates(self) -> tuple[Rates, bool]:
        """One device's own limits, as ``Supervisor.rates`` gives them."""

    def know(self, canary: Canary | None) -> None:
        """What the graph timer takes off from now on."""

    def settle(self) -> None:
        """Wait until nothing is compiled that would disturb the timing."""

    def ahead(self, loaded: Loaded) -> Ahead:
        """What compiles a kernel's points before they are measured."""

    def pool(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> WorkerPool:
        """Who measures the points of a schedule for as many workers as there are devices; the times of those
        that are ``audited`` are audited in any case."""

    def changes(self) -> dict[str, str]:
        """What made workers be replaced though they answered, by provider."""


class LocalDevices:
    """A worker on each of some devices of this host, in this host's environment unless another is named. A
    context manager: what compiles ahead ends with it."""

    def __init__(
        self,
        devices: Sequence[Device],
        workers: Sequence[Supervisor],
        environment: Environment | None = None,
    ) -> None:
        self._devices = devices
        self.environment = environment or fingerprint(devices[0])
        self._workers = workers
        self._compilers = Compilers(self.environment.compute_capability)

    @property
    def devices(self) -> Sequence[Device]:
        """They, in their order."""
        return self._devices

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """The keys that a kernel's points have here."""
        return Identity(loaded, self.environment, settings, seed)

    def begin(self) -> None:
        """Start what is not running yet."""
        for worker in self._workers:
            worker.changes.clear()
            worker.start()

    def rates(self) -> tuple[Rates, bool]:
        """The first device's own limits."""
        return self._workers[0].rates()

    def know(self, canary: Canary | None) -> None:
        """What the graph timer takes off from now on."""
        for worker in self._workers:
            worker.canary = canary

    def settle(self) -> None:
        """On a CPU wait for the compilers, which share its cores with the timed points."""
        if self._devices[0].kind == "cpu":
            self._compilers.wait()

    def ahead(self, loaded: Loaded) -> Ahead:
        """Compilers on this host, which kernels share."""
        return Ahead(loaded, self._compilers)

    def pool(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> WorkerPool:
        """The workers, a thread each."""
        return WorkerPool(loaded.where, self._workers, control, report, audited)

    def changes(self) -> dict[str, str]:
        """What made workers be replaced though they answered, by provider."""
        return {name: what for worker in self._workers for name, what in worker.changes.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._compilers.__exit__(kind, error, trace)
