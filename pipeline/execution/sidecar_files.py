"""The files beside a ledger that are needed to read it: the environment, the configuration, the ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment

from .. import ROOT
from ..store import results
from .device_group import DeviceGroup

Rated = Supervisor | DeviceGroup
"""Measures a device's ceilings."""


def known(paths: Sequence[Path]) -> list[Ceilings]:
    """Read the ceilings in the files that exist. Undisturbed ceilings come first."""
    found = [results.read(Ceilings, path) for path in paths if path.exists()]
    return sorted(found, key=lambda one: one.is_disturbed)


def known_or_measured(worker: Rated, environment: Environment, paths: Sequence[Path], path: Path) -> Ceilings:
    """Return the ceilings of the worker's device in this environment from the files at ``paths``.

    If no file has them, they are measured and written to ``path``. Disturbed ceilings are taken as they are:
    the file may be another stage's output, and rows that were measured with them would change their meaning.

    Raises UserError when they can't be measured or written.
    """
    of_here = [
        one
        for one in known(paths)
        if one.environment == environment.of_device and (one.canary is not None or environment.kind == "cpu")
    ]
    return of_here[0] if of_here else measured(worker, environment, path)


def measured(worker: Rated, environment: Environment, path: Path) -> Ceilings:
    """Measure the ceilings of the worker's device in this environment, and write them to ``path``.

    Raises UserError when they can't be measured or written.
    """
    rates, is_disturbed = worker.rates()
    before = results.read(Ceilings, path) if path.exists() else None
    # The noise of equal kernels and the spread of equal points are no rates, and are kept.
    is_same = before is not None and before.environment == environment.of_device
    kept: dict[str, Any] = (
        {"noise": before.noise, "spread": before.spread} if before is not None and is_same else {}
    )
    ceilings = Ceilings(
        gpu=environment.gpu,
        environment=environment.of_device,
        is_disturbed=is_disturbed,
        **kept,
        **msgspec.structs.asdict(rates),
    )
    write_atomically(path, ceilings.to_json(indent=2) + b"\n")
    return ceilings


class SidecarFiles:
    """The files that a sweep writes beside a kernel's ledger. ``options`` are the options of the sweep."""

    def __init__(
        self, output: Path, kernel: str, environment: Environment, kind: str, options: dict[str, Any]
    ) -> None:
        self._environment = environment
        self._options = options
        gpu = environment.gpu
        self._described = results.environment_path(output, gpu), results.config_path(output, kernel, gpu)
        own = results.folder_for(ROOT / "results", kind)
        self._ceilings = results.ceilings_path(output, gpu), results.ceilings_path(own, gpu)
        self._written: dict[Path, bytes] = {}

    def write(self, worker: Rated) -> Ceilings:
        """Write all files, the ceilings only if the repository's results lack them. Returns the ceilings."""
        environment, configuration = self._described
        self._written = {
            environment: self._environment.to_json(indent=2) + b"\n",
            configuration: yaml.safe_dump(self._options, sort_keys=True).encode(),
        }
        for path, content in self._written.items():
            write_atomically(path, content)
        here = self._ceilings[0]
        found = known_or_measured(worker, self._environment, list(self._ceilings), here)
        if here.exists():
            self._written[here] = here.read_bytes()
        return found

    def known_ceilings(self) -> Ceilings | None:
        """Return the ceilings for rows of a sweep that measures nothing; None if there are none yet."""
        return next(iter(known(self._ceilings)), None)

    def is_there(self) -> bool:
        """Whether all files exist."""
        return all(path.exists() for path in self._described) and any(
            path.exists() for path in self._ceilings
        )

    def keep(self) -> None:
        """Write again the files that were removed since they were written."""
        for path, content in self._written.items():
            if not path.exists():
                write_atomically(path, content)
