"""A sweep against the textbook way of doing it, in the same run on the same GPU.

    python -m pipeline.bench_sweep
    python -m pipeline.bench_sweep kernel=matmul provider=triton_tiled preset=quick ~pin
    python -m pipeline.bench_sweep repeats=3

Both measure the same points of one provider, each in a process of its own with empty compiler caches: the
textbook compiles, verifies and calls ``do_bench`` point after point; the sweep compiles ahead, verifies
against float64 twice, and keeps a ledger. It also measures the kernel's baseline at each problem, which the
textbook does not. Prints the seconds of the loop alone, from when torch is imported to when the last point is
recorded, those of the whole command, and their ratios.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.contract import Value, shown
from pipeline import UserError
from pipeline.command.options import BenchSweepConfig
from pipeline.command.run import console, run_stage
from pipeline.execution.benchmark import Seconds, calibrated, compared, timed
from pipeline.machine import device
from pipeline.points.plan import Target, plan
from pipeline.points.point import Point
from pipeline.reporting.numbers import print_wide


def run(config: BenchSweepConfig) -> None:
    """Time both ways and print the ratio."""
    chosen = device.resolve(config.device)
    if chosen.kind != "cuda":
        raise UserError(f"do_bench needs a GPU, and device={config.device} is {chosen.name} here.")
    points = accepted(config, Target(chosen.kind, device.capabilities(chosen)))
    with tempfile.TemporaryDirectory() as folder:
        calibrated(str(chosen), Path(folder))
        path = Path(folder, "plan.json")
        path.write_text(json.dumps(textbook(config, points)))
        fixed = [f"device={chosen}", f"output={folder}", "remeasure=true", "tracking=none", "allow=all"]
        ways = {
            "textbook": ["pipeline.execution.textbook", str(path)],
            "sweep": ["pipeline.sweep", *options(config), *fixed],
        }
        found: dict[str, list[Seconds]] = {way: [] for way in ways}
        for turn in range(config.repeats):
            for way, words in ways.items():
                environment = {
                    "TRITON_CACHE_DIR": f"{folder}/triton-{way}-{turn}",
                    "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor-{way}-{turn}",
                }
                if way == "textbook":
                    environment["CUDA_VISIBLE_DEVICES"] = chosen.uuid or ""
                found[way].append(timed(words, environment))
    title = f"{len(points)} points of {config.entry.name}/{config.provider} on {chosen.slug}, cold caches"
    print_wide(console, compared(found, title))


def accepted(config: BenchSweepConfig, target: Target) -> tuple[Point, ...]:
    """The points that a sweep measures. Raises UserError where there are none."""
    planned = plan(config.entry, config.preset.name, target, config.pin, [config.provider])
    if not planned.points:
        raise UserError(f"there is nothing to measure: {' '.join(planned.refusals())}.")
    return planned.points


def textbook(config: BenchSweepConfig, points: Sequence[Point]) -> dict[str, object]:
    """What the textbook's loop is given."""
    return {
        "where": config.entry.loaded.where,
        "provider": config.provider,
        "points": [point.model_dump(include={"problem", "parameters"}) for point in points],
    }


def options(config: BenchSweepConfig) -> list[str]:
    """The options that make a sweep of the same points."""
    return [
        f"kernel={config.entry.loaded.where}",
        f"preset={config.preset.name}",
        f"provider={config.provider}",
        *pinned(config.pin),
    ]


def pinned(pins: Mapping[str, Sequence[Value]]) -> list[str]:
    """Pins as they are written on a command line."""
    return [f"{name}=[{','.join(map(shown, values))}]" for name, values in pins.items()]


if __name__ == "__main__":
    run_stage("bench_sweep", BenchSweepConfig, run)
