"""A sweep on one GPU of this host against the same sweep on two, four and so on.

    python -m pipeline.bench_devices kernel=softmax
    python -m pipeline.bench_devices kernel=matmul preset=quick
    python -m pipeline.bench_devices kernel=softmax repeats=3

Each measures a preset of the kernel with empty compiler caches. Prints the seconds of the loop, from when
torch is imported to when the last point is recorded, those of the whole command, and their ratios.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pipeline import UserError
from pipeline.command.options import BenchDevicesConfig
from pipeline.command.run import console, run_stage
from pipeline.execution.benchmark import Seconds, calibrated, compared, timed
from pipeline.machine import device
from pipeline.reporting.numbers import print_wide


def run(config: BenchDevicesConfig) -> None:
    """Time the sweep on more and more GPUs and print the ratios."""
    gpus = device.gpus()
    if len(gpus) < 2:
        raise UserError(f"this compares one GPU with several, and here are {len(gpus)}.")
    counts = [count for count in (1, 2, 4, 8) if count <= len(gpus)]
    found: dict[str, list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as folder:
        calibrated(str(gpus[0]), Path(folder))
        sweep = ["pipeline.sweep", f"kernel={config.entry.loaded.where}", f"preset={config.preset.name}"]
        sweep += [f"output={folder}", "remeasure=true", "tracking=none", "allow=all"]
        for turn in range(config.repeats):
            for count in counts:
                devices = "[" + ",".join(str(gpu) for gpu in gpus[:count]) + "]"
                caches = Path(folder) / f"{count}-{turn}"
                environment = {
                    "TRITON_CACHE_DIR": str(caches / "triton"),
                    "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
                }
                way = "1 GPU" if count == 1 else f"{count} GPUs"
                found.setdefault(way, []).append(timed([*sweep, f"device={devices}"], environment))
    title = f"{config.entry.name} on {gpus[0].slug}, preset {config.preset.name}, cold caches"
    print_wide(console, compared(found, title))


if __name__ == "__main__":
    run_stage("bench_devices", BenchDevicesConfig, run)
