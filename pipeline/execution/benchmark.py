"""Time commands of this project as a user waits for them, for the benchmarks of sweeps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.table import Table

from kernel_pipeline.contract import Value, shown
from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.device import Device
from pipeline import ROOT


@dataclass(frozen=True)
class Seconds:
    """The seconds of a sweep.

    ``loop`` is the time that it prints itself, from the import of torch to its last recorded point. ``whole``
    is the time of its process.
    """

    loop: float
    whole: float


def run(words: Sequence[str], environment: Mapping[str, str]) -> tuple[str, float]:
    """Run ``python -m WORDS``. Returns its output and seconds. Raises UserError if it fails."""
    begin = perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = perf_counter() - begin
    if done.returncode:
        raise UserError(f"{' '.join(words)} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout, seconds


def timed(words: Sequence[str], environment: Mapping[str, str]) -> Seconds:
    """Time a command that prints how long its points took."""
    printed, whole = run(words, environment)
    loop = re.search(r"points? measured in ([\d.]+) s", printed)
    assert loop is not None, "every sweep says how long it took"
    return Seconds(float(loop[1]), whole)


def calibrated(device: str, output: Path) -> None:
    """Measure the device's ceilings into ``output``: sweeps there then find them, as after ``dvc repro``."""
    run(["pipeline.ceilings", f"device={device}", f"output={output}"], {})


def compared(found: Mapping[str, Sequence[Seconds]], title: str) -> Table:
    """Return a table of each way's shortest times, and the first way's time over each."""
    table = Table(title=title)
    first, *_ = found
    for heading in ("way", "loop s", f"x {first}", "command s", f"x {first}"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    best = {
        way: Seconds(min(s.loop for s in all_), min(s.whole for s in all_)) for way, all_ in found.items()
    }
    for way, seconds in best.items():
        loop, whole = best[first].loop / seconds.loop, best[first].whole / seconds.whole
        table.add_row(way, f"{seconds.loop:.1f}", f"{loop:.2f}", f"{seconds.whole:.1f}", f"{whole:.2f}")
    return table


def beside_textbook(
    textbook: Mapping[str, object], sweep: Sequence[str], chosen: Device, repeats: int, title: str
) -> Table:
    """Time a sweep with the options ``sweep`` beside the plain loop of ``textbook.py`` over the same points.

    Each runs in its own process, with empty compiler caches.
    """
    found: dict[str, list[Seconds]] = {"textbook": [], "sweep": []}
    with tempfile.TemporaryDirectory() as folder:
        calibrated(str(chosen), Path(folder))
        path = Path(folder, "plan.json")
        path.write_text(json.dumps(textbook))
        ways = {
            "textbook": ["pipeline.execution.textbook", str(path)],
            "sweep": ["pipeline.sweep", *sweep, f"device={chosen}", *_into(folder)],
        }
        for turn in range(repeats):
            for way, words in ways.items():
                environment = _caches(Path(folder, f"{way}-{turn}"))
                if way == "textbook":
                    environment["CUDA_VISIBLE_DEVICES"] = chosen.uuid or ""
                found[way].append(timed(words, environment))
    return compared(found, title)


def on_several(sweep: Sequence[str], gpus: Sequence[Device], repeats: int, title: str) -> Table:
    """Time a sweep with these options on one, two, four and eight GPUs, with empty compiler caches.

    Raises UserError for fewer than two GPUs.
    """
    if len(gpus) < 2:
        raise UserError(f"this benchmark compares one GPU with several, and this machine has {len(gpus)}.")
    found: dict[str, list[Seconds]] = {}
    with tempfile.TemporaryDirectory() as folder:
        calibrated(str(gpus[0]), Path(folder))
        for turn in range(repeats):
            for count in (count for count in (1, 2, 4, 8) if count <= len(gpus)):
                devices = f"device=[{','.join(map(str, gpus[:count]))}]"
                words = ["pipeline.sweep", *sweep, devices, *_into(folder)]
                seconds = timed(words, _caches(Path(folder, f"{count}-{turn}")))
                found.setdefault(f"{count} GPU{'s' * (count > 1)}", []).append(seconds)
    return compared(found, title)


def pinned(pins: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return pins as options of a command line."""
    return [f"{name}=[{','.join(map(shown, values))}]" for name, values in pins.items()]


def _into(folder: str) -> list[str]:
    """Return the options of a sweep that measures everything and writes nothing outside of a folder."""
    return [f"output={folder}", "remeasure=true", "tracking=none", "allow=all"]


def _caches(folder: Path) -> dict[str, str]:
    """Return environment variables that give the compilers new caches in a folder."""
    return {
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
