"""Stage ``ceilings``: how fast could it be here?"""

from __future__ import annotations

from pipeline.config import CeilingsConfig, console, run_stage
from pipeline.measure import calibration, device, results


def run(config: CeilingsConfig) -> None:
    """Measure the device's ceilings unless they are known, and print them."""
    chosen = device.resolve(config.device)
    path = results.ceilings_path(config.output, chosen.slug)
    ceilings = calibration.known_or_measured(chosen, [path], path, remeasure=config.remeasure)
    console.print(f"{ceilings.gpu}: copy {ceilings.copy_gbps:.0f} GB/s", highlight=False)
    for dtype, tflops in ceilings.matmul_tflops.items():
        console.print(f"{ceilings.gpu}: matmul {dtype} {tflops:.4g} TFLOP/s", highlight=False)
    console.print(f"Written to {path}.", highlight=False)


if __name__ == "__main__":
    run_stage("ceilings", CeilingsConfig, run)
