"""A sweep against the textbook way of doing it, in the same run on the same GPU.

    python -m pipeline.bench_sweep

Both measure the same points of softmax's ``triton_online``, those that a sweep does not refuse, each in a
process of its own with an empty Triton cache: the textbook compiles, verifies and calls ``do_bench`` point
after point; the sweep compiles ahead, verifies against float64 twice, and keeps a ledger. Prints the seconds
of the loop alone, from when torch is imported to when the last point is recorded, those of the whole command,
and their ratios.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import kernels
from pipeline import UserError
from pipeline.command.config import BenchSweepConfig, console, run_stage
from pipeline.execution.benchmark import Seconds, calibrated, compared, timed
from pipeline.machine import device
from pipeline.points import grid


def run(config: BenchSweepConfig) -> None:
    """Time both ways and print the ratio."""
    chosen = device.resolve(config.device)
    if chosen.kind != "cuda":
        raise UserError(f"timing Triton needs a GPU, and device={config.device} is {chosen.name} here.")
    axes = {name: list(getattr(config, name)) for name in ("size", "block_size", "num_warps")}
    points = accepted(axes)
    pins = [f"{name}={values}".replace(" ", "") for name, values in axes.items()]
    pins += ["kernel=softmax", "provider=triton_online", "dtype=float32", f"device={chosen}"]
    with tempfile.TemporaryDirectory() as folder:
        calibrated(str(chosen), Path(folder))
        ways = {
            "textbook": ["pipeline.execution.textbook", json.dumps(points)],
            "sweep": ["pipeline.sweep", *pins, f"output={folder}", "remeasure=true", "tracking=none"],
        }
        found: dict[str, list[Seconds]] = {way: [] for way in ways}
        for turn in range(config.repeats):
            for way, words in ways.items():
                environment = {"TRITON_CACHE_DIR": f"{folder}/triton-{way}-{turn}"}
                if way == "textbook":
                    environment["CUDA_VISIBLE_DEVICES"] = chosen.uuid or ""
                found[way].append(timed(words, environment))
    title = f"{len(points)} points of softmax/triton_online on {chosen.slug}, cold caches"
    console.print(compared(found, title))


def accepted(axes: dict[str, list[int]]) -> list[tuple[int | None, ...]]:
    """Size, block_size and number of warps of the points that a sweep measures."""
    kernel = kernels.load("softmax")
    provider = kernel.provider("triton_online")
    points = grid.expand(kernel, [provider.name], [{"rows": [None], "dtype": ["float32"], **axes}])
    return [
        (point.size, point.block_size, point.num_warps)
        for point in points
        if provider.unsupported(point, kernel.shape_of(point)) is None
    ]


if __name__ == "__main__":
    run_stage("bench_sweep", BenchSweepConfig, run)
