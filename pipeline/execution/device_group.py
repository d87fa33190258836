"""The devices that measure a sweep: workers on devices of one model, on this host or others."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Self

from kernel_pipeline.execution.compile_pool import Ahead, Compilers
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.loading import Loaded
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.ceilings import Canary, Rates
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings

from ..keys.identity import Identity
from .worker_pool import Report, WorkerPool


class DeviceGroup:
    """The devices of one model that share a sweep, and a worker on each: devices of this host, in this host's
    environment unless another is given.

    It is a context manager, which ends the compilers on exit.
    """

    def __init__(
        self, devices: Sequence[Device], workers: Sequence[Supervisor], environment: Environment | None = None
    ) -> None:
        self._devices = devices
        self.environment = environment or fingerprint(devices[0])
        self._workers = workers
        self._compilers = Compilers(self.environment.compute_capability)

    @property
    def devices(self) -> Sequence[Device]:
        """The devices, in their order."""
        return self._devices

    def identity(self, loaded: Loaded, settings: TimingSettings, seed: int) -> Identity:
        """Return the identity that makes the keys of a kernel's points here."""
        return Identity(loaded, self.environment, settings, seed)

    def begin(self) -> None:
        """Start the workers that are not running, and clear ``changes``."""
        for worker in self._workers:
            worker.changes.clear()
            worker.start()

    def rates(self) -> tuple[Rates, bool]:
        """Measure the first device's ceilings."""
        return self._workers[0].rates()

    def know(self, canary: Canary | None) -> None:
        """Set the canary that the workers' graph timers use from now on."""
        for worker in self._workers:
            worker.canary = canary

    def settle(self) -> None:
        """On a CPU wait for the compilers, which share its cores with timed calls."""
        if self._devices[0].kind == "cpu":
            self._compilers.wait()

    def ahead(self, loaded: Loaded) -> Ahead:
        """Return the object that compiles a kernel's points ahead. All kernels share the compilers."""
        return Ahead(loaded, self._compilers)

    def pool(
        self, loaded: Loaded, control: Point, report: Report, audited: Container[Point] = ()
    ) -> WorkerPool:
        """Return a pool that measures a schedule's points, with a thread for each worker.

        The times of points in ``audited`` are audited in any case.
        """
        return WorkerPool(loaded.where, self._workers, control, report, audited)

    def changes(self) -> dict[str, str]:
        """Return by provider why its worker was replaced although it answered."""
        return {name: what for worker in self._workers for name, what in worker.changes.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._compilers.__exit__(*error)
