"""A device's ceilings: read where they are known, measured by a worker where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pipeline.store import results
from pipeline.store.ceilings import Ceilings, Rates
from pipeline.store.environment import Environment
from pipeline.store.files import write_atomically


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
    kept = {"noise": before.noise, "spread": before.spread} if before is not None and is_same else {}
    ceilings = Ceilings(
        gpu=environment.gpu,
        environment=environment.of_device,
        is_disturbed=is_disturbed,
        **kept,
        **rates.model_dump(),
    )
    write_atomically(path, ceilings.model_dump_json(indent=2).encode() + b"\n")
    return ceilings
