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


def known_or_measured(worker: Rated, environment: Environment, known: Sequence[Path], path: Path) -> Ceilings:
    """The ceilings of the worker's device in this environment, from the first of the ``known`` files that has
    them; else measured now and written to ``path``.

    Raises UserError when they can't be measured or written.
    """
    for candidate in known:
        if candidate.exists():
            ceilings = results.read(Ceilings, candidate)
            if ceilings.environment == environment.of_device and not ceilings.is_disturbed:
                return ceilings
    rates, is_disturbed = worker.rates()
    before = results.read(Ceilings, path) if path.exists() else None
    # What comparisons found of equal kernels is no rate, and stays.
    noise = before.noise if before is not None and before.environment == environment.of_device else {}
    ceilings = Ceilings(
        gpu=environment.gpu,
        environment=environment.of_device,
        is_disturbed=is_disturbed,
        noise=noise,
        **rates.model_dump(),
    )
    write_atomically(path, ceilings.model_dump_json(indent=2).encode() + b"\n")
    return ceilings
