"""A copy of the tree with planted kernels, in which the real command runs as real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.measure import device, ledger, results
from pipeline.measure.ceiling import Ceilings
from pipeline.measure.record import Measurement

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent


def heed_ctrl_c() -> None:
    """As a command on a terminal does: what a script runs in its background ignores SIGINT, children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Tree:
    """The copy. It has a folder for temporary files of its own, and so locks of its own."""

    def __init__(self, folder: Path, *planted: str) -> None:
        self.root = folder / "tree"
        for part in ("kernels", "pipeline", "conf"):
            shutil.copytree(ROOT / part, self.root / part)
        for name in planted:
            shutil.copytree(PLANTED / name, self.root / "kernels" / name)
            shutil.copy(PLANTED / f"{name}.yaml", self.root / "conf" / "kernel")
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def know_ceilings(self, where: device.Device) -> None:
        """Write ceilings for the device, so that no sweep takes the time to measure them."""
        environment = device.fingerprint(where)
        known = Ceilings(
            gpu=where.slug, environment=environment.digest, copy_gbps=40.0, matmul_tflops={"float32": 1.0}
        )
        path = results.ceilings_path(self.root / "results", where.slug)
        ledger.write_atomically(path, known.model_dump_json().encode())

    def start(self, *options: str, **popen: Any) -> subprocess.Popen[str]:
        """Start ``python -m pipeline.sweep`` with the options, in a process group of its own."""
        defaults = {"preset": "smoke", "device": "cpu", "tracking": "none", "timing.max_seconds": "0.002"}
        given = {option.split("=")[0] for option in options}
        words = [f"{name}={value}" for name, value in defaults.items() if name not in given]
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.sweep", *words, *options],
            cwd=self.root,
            env=os.environ | {"TMPDIR": str(self.temporary), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"preexec_fn": heed_ctrl_c} | popen,
        )

    def sweep(self, *options: str, **popen: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*options, **popen)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ledger(self, kernel: str, output: str = "outputs") -> Path:
        """The only ledger of the kernel."""
        (path,) = (self.root / output / "timings" / kernel).glob("*.jsonl")
        return path

    def rows(self, kernel: str, output: str = "outputs") -> list[Measurement]:
        """The ledger's lines, which must all be readable."""
        lines = self.ledger(kernel, output).read_text().splitlines()
        return [Measurement.from_row(json.loads(line)) for line in lines]

    def workers(self) -> list[int]:
        """Processes that measure for this tree and are alive."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command, where = (process / "cmdline").read_bytes(), (process / "cwd").readlink()
            except OSError:
                continue  # it has ended meanwhile, or is a zombie
            if b"pipeline.measure.worker" in command and where == self.root:
                found.append(int(process.name))
        return found


def cpu_tree(folder: Path, *planted: str) -> Tree:
    """A tree whose sweeps measure this machine's CPU."""
    tree = Tree(folder, *planted)
    tree.know_ceilings(device.cpu())
    return tree
