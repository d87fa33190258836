"""A device's ceilings: read where they are known, measured by a worker where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.measure import device, results
from pipeline.measure.ceiling import Ceilings
from pipeline.measure.ledger import write_atomically
from pipeline.measure.settings import TimingSettings
from pipeline.measure.supervisor import Supervisor


def known_or_measured(
    chosen: device.Device, known: Sequence[Path], path: Path, remeasure: bool = False
) -> Ceilings:
    """The ceilings of this device in this environment, from the first of the ``known`` files that has them;
    else measured now and written to ``path``.

    Raises UserError when they can't be measured or written.
    """
    environment = device.fingerprint(chosen)
    for candidate in known if not remeasure else ():
        if candidate.exists():
            ceilings = results.read(Ceilings, candidate)
            if ceilings.environment == environment.digest:
                return ceilings
    with Supervisor(chosen, TimingSettings(), seed=0, timeout_s=300.0) as worker:
        copy_gbps, matmul_tflops = worker.ceilings()
    ceilings = Ceilings(
        gpu=chosen.slug,
        environment=environment.digest,
        copy_gbps=copy_gbps,
        matmul_tflops=matmul_tflops,
    )
    write_atomically(path, ceilings.model_dump_json(indent=2).encode() + b"\n")
    return ceilings
