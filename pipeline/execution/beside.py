"""What lies beside a ledger, without which it can't be read: the environment, the configuration, the
ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pipeline import ROOT
from pipeline.execution import calibration
from pipeline.execution.calibration import Rated
from pipeline.store import results
from pipeline.store.ceilings import Ceilings
from pipeline.store.environment import Environment
from pipeline.store.files import write_atomically


class Beside:
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
            environment: self._environment.model_dump_json(indent=2).encode() + b"\n",
            configuration: yaml.safe_dump(self._options, sort_keys=True).encode(),
        }
        for path, content in self._written.items():
            write_atomically(path, content)
        here = self._ceilings[0]
        found = calibration.known_or_measured(worker, self._environment, list(self._ceilings), here)
        if here.exists():
            self._written[here] = here.read_bytes()
        return found

    def known_ceilings(self) -> Ceilings | None:
        """The ceilings that rows are told by where nothing is measured; None where there are none yet."""
        return next(iter(calibration.known(self._ceilings)), None)

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
