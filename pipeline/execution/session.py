"""A session on one device, for commands that measure: its environment, ceilings and supervisors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.records.ceilings import Canary, Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.point import Point
from kernel_pipeline.records.settings import TimingSettings
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place

from .. import ROOT
from ..keys import identity
from ..points import catalog
from ..store import results
from . import sidecar_files


@dataclass(frozen=True)
class Session:
    """One device, and the settings of its timing.

    Ceilings are read from the folder ``output`` or from a folder in ``known``. If none has them, they are
    measured and written to ``output``.
    """

    device: Device
    timing: TimingSettings
    seed: int
    timeout_s: float
    output: Path
    known: tuple[Path, ...] = (ROOT / "results",)

    @cached_property
    def environment(self) -> Environment:
        """The device's environment now."""
        return fingerprint(self.device)

    @property
    def ceilings_path(self) -> Path:
        """The file to which the ceilings are written."""
        return results.ceilings_path(self.output, self.device.slug)

    @cached_property
    def ceilings(self) -> Ceilings:
        """The device's ceilings. Raises UserError when they can't be measured or written."""
        folders = [results.folder_for(folder, self.device.kind) for folder in self.known]
        others = [results.ceilings_path(folder, self.device.slug) for folder in folders]
        path = self.ceilings_path
        with self.supervisor() as worker:
            return sidecar_files.known_or_measured(worker, self.environment, [path, *others], path)

    @property
    def canary(self) -> Canary | None:
        """The canary of a GPU; None for a CPU, which has no launch gap."""
        return self.ceilings.canary if self.device.kind == "cuda" else None

    def supervisor(self, **options: Any) -> Supervisor:
        """Return a supervisor of this device with these settings. ``options`` are passed to Supervisor."""
        return supervisor(self.device, self.timing, self.seed, self.timeout_s, **options)


def build_libraries(points: Iterable[tuple[str, Point]]) -> None:
    """Build the libraries of the providers of points, each with its kernel's address. Raises UserError if one
    can't be built."""
    sources: dict[str, set[str]] = {}
    for where, point in points:
        provider = catalog.find(where).loaded.kernel.provider(point.provider)
        if provider.extension:
            sources.setdefault(where, set()).add(provider.extension)
    for where, files in sources.items():
        extension.build(Place.for_kernel(catalog.find(where).loaded), sorted(files))


def supervisor(
    device: Device,
    timing: TimingSettings,
    seed: int,
    timeout_s: float,
    root: Path | Root = ROOT,
    **options: Any,
) -> Supervisor:
    """Return a supervisor whose outcomes name the files that a provider read and its key does not cover.

    Keys are computed in this tree, so outcomes of another tree, or with other packages, name no files.
    """
    made = Supervisor(device, timing, seed, timeout_s, root, **options)
    made.unkeyed = identity.unkeyed if root == ROOT else None
    return made
