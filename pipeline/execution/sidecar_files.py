"""The files beside a ledger, without which it can't be read: the environment, the configuration, the
ceilings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import yaml

from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.ceilings import Ceilings, Rates
from kernel_pipeline.records.environment import Environment
from pipeline import ROOT
from pipeline.store import results


class Rated(Protocol):
    """What can measure a device's own limits."""

    def rates(self) -> tuple[Rates, bool]:
        """Them, and whether others had the device meanwhile. Raises UserError when they can't be measured."""


def known(paths: Sequence[Path]) -> list[Ceilings]:
    """What those of the files hold that are there, what nobody disturbed first."""
    found = [results.read(Ceilings, path) for path in paths if path.exists()]
    return sorted(found, key=lambda one: one.is_disturbed)


def known_or_measured(worker: Rated, environment: Environment, paths: Sequence[Path], path: Path) -> Ceilings:
    """The ceilings of the worker's device in this environment, as the files at ``paths`` have them; else
    measured now and written to ``path``. Disturbed ones are taken as they are: another stage's file is not
    this one's to change, and what was measured before would mean something else.

    Raises UserError when they can't be measured or written.
    """
    of_here = [
        one
        for one in known(paths)
        if one.environment == environment.of_device and (one.canary is not None or environment.kind == "cpu")
    ]
    return of_here[0] if of_here else measured(worker, environment, path)


def measured(worker: Rated, environment: Environment, path: Path) -> Ceilings:
    """The ceilings of the worker's device in this environment, measured now and written to ``path``.

    Raises UserError when they can't be measured or written.
    """
    rates, is_disturbed = worker.rates()
    before = results.read(Ceilings, path) if path.exists() else None
    # What was found of equal kernels and of equal points is no rate, and stays.
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
    """The files of a sweep of a kernel into a folder. ``options`` are those of the sweep."""

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
        """Write all of it, the ceilings unless the repository's results have them. Returns the ceilings."""
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
        """The ceilings that rows are told by where nothing is measured; None where there are none yet."""
        return next(iter(known(self._ceilings)), None)

    def is_there(self) -> bool:
        """Whether all of it is there."""
        return all(path.exists() for path in self._described) and any(
            path.exists() for path in self._ceilings
        )

    def keep(self) -> None:
        """Write again what was removed since it was written."""
        for path, content in self._written.items():
            if not path.exists():
                write_atomically(path, content)
