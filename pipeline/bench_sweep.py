"""A sweep against the textbook way of doing it, in the same run on the same GPU.

    python -m pipeline.bench_sweep

Both measure the same points of softmax's ``triton_online``, each in a process of its own with an empty Triton
cache: the textbook compiles, verifies and calls ``do_bench`` point after point; the sweep compiles ahead,
verifies against float64 twice, and keeps a ledger. Prints the seconds of the loop alone, from when torch is
imported to when the last point is recorded, those of the whole command, and their ratios.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from rich.table import Table

from pipeline.config import ROOT, BenchSweepConfig, console, run_stage
from pipeline.errors import UserError
from pipeline.measure import device


def run(config: BenchSweepConfig) -> None:
    """Time both ways and print the ratio."""
    chosen = device.resolve(config.device)
    if chosen.kind != "cuda":
        raise UserError(f"timing Triton needs a GPU, and device={config.device} is {chosen.name} here.")
    points = len(config.size) * len(config.block_size) * len(config.num_warps)
    seconds: dict[str, list[tuple[float, float]]] = {"textbook": [], "sweep": []}
    for _ in range(config.repeats):
        for way, times in seconds.items():
            times.append(timed(way, config, chosen))
    table = Table(title=f"{points} points of softmax/triton_online on {chosen.slug}, cold caches")
    for heading in ("way", "loop s", "x textbook", "command s", "x textbook"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    textbook_loop, textbook_whole = map(min, zip(*seconds["textbook"], strict=True))
    for way, times in seconds.items():
        loop, whole = map(min, zip(*times, strict=True))
        ratios = f"{textbook_loop / loop:.2f}", f"{textbook_whole / whole:.2f}"
        table.add_row(way, f"{loop:.1f}", ratios[0], f"{whole:.1f}", ratios[1])
    console.print(table)


def timed(way: str, config: BenchSweepConfig, chosen: device.Device) -> tuple[float, float]:
    """Seconds that one way takes: its loop by its own word, and its process from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "TRITON_CACHE_DIR": str(Path(folder) / "triton"),
            "CUDA_VISIBLE_DEVICES": chosen.uuid or "",
        }
        axes = {name: list(getattr(config, name)) for name in ("size", "block_size", "num_warps")}
        if way == "textbook":
            command = [sys.executable, "-m", "pipeline.textbook", json.dumps(axes)]
        else:
            pins = [f"{name}={values}".replace(" ", "") for name, values in axes.items()]
            command = [sys.executable, "-m", "pipeline.sweep", "kernel=softmax", "provider=triton_online"]
            command += [*pins, "dtype=float32", f"output={folder}", "tracking=none"]
        begin = perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        whole = perf_counter() - begin
        if done.returncode:
            raise UserError(f"the {way} way failed: {(done.stderr or done.stdout).strip()[-300:]}")
        loop = re.search(r"points measured in ([\d.]+) s", done.stdout)
        assert loop is not None, "both ways say how long they took"
        return float(loop[1]), whole


if __name__ == "__main__":
    run_stage("bench_sweep", BenchSweepConfig, run)
