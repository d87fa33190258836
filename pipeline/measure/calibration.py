"""A device's ceilings: read where they are known, measured by a worker where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.measure import results
from pipeline.measure.ceiling import Ceilings
from pipeline.measure.device import Environment
from pipeline.measure.ledger import write_atomically
from pipeline.measure.supervisor import Supervisor


def known_or_measured(
    worker: Supervisor, environment: Environment, known: Sequence[Path], path: Path
) -> Ceilings:
    """The ceilings of the worker's device in this environment, from the first of the ``known`` files that has
    them; else measured now and written to ``path``.

    Raises UserError when they can't be measured or written.
    """
    for candidate in known:
        if candidate.exists():
            ceilings = results.read(Ceilings, candidate)
            if ceilings.environment == environment.digest:
                return ceilings
    rates = worker.rates()
    ceilings = Ceilings(
        gpu=environment.gpu,
        environment=environment.digest,
        copy_gbps=rates.copy_gbps,
        matmul_tflops=rates.matmul_tflops,
        overhead=rates.overhead,
    )
    write_atomically(path, ceilings.model_dump_json(indent=2).encode() + b"\n")
    return ceilings
