"""Stage ``ceilings``: measure the highest rates of this device.

    python -m pipeline.ceilings
    python -m pipeline.ceilings device=cuda:1
    python -m pipeline.ceilings remeasure=true

Measures the GB/s of a large copy, and for each arithmetic the TFLOP/s of a large matrix product. Tables and
plots show rates as shares of these ceilings.
"""

from __future__ import annotations

from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.machine import device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.ceilings import DISTURBED
from kernel_pipeline.records.settings import TimingSettings

from .command.options import CeilingsConfig
from .command.run import run_stage, say, warn
from .execution import sidecar_files
from .store import results

TIMEOUT_S = 300.0
"""The time limit in seconds, far more than the measurement takes."""


def run(config: CeilingsConfig) -> None:
    """Measure the device's ceilings unless they are known, and print them."""
    chosen = device.resolve(config.device)
    results.asked_for(results.ceilings_path(config.output, chosen.slug))
    path = results.ceilings_path(results.folder_for(config.output, chosen.kind), chosen.slug)
    with (
        DeviceLock(chosen, config.wait_s, warn),
        Supervisor(chosen, TimingSettings(), seed=0, timeout_s=TIMEOUT_S) as worker,
    ):
        environment = fingerprint(chosen)
        if config.remeasure or any(one.is_disturbed for one in sidecar_files.known([path])):
            ceilings = sidecar_files.measured(worker, environment, path)
        else:
            ceilings = sidecar_files.known_or_measured(worker, environment, [path], path)
    if ceilings.is_disturbed:
        warn(DISTURBED)
    say(f"{ceilings.gpu}: copy {ceilings.copy_gbps:.0f} GB/s")
    for arithmetic, tflops in ceilings.matmul_tflops.items():
        say(f"{ceilings.gpu}: matmul {arithmetic} {tflops:.4g} TFLOP/s")
    say(f"Written to {path}.")


if __name__ == "__main__":
    run_stage("ceilings", CeilingsConfig, run)
