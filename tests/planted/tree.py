"""A copy of the tree with planted kernels, in which the real command runs as real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine import fingerprint as environment
from kernel_pipeline.records.ceilings import Canary, Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from pipeline.store import results
from pipeline.store.ledger import read_rows

ROOT = Path(__file__).parents[2]
PLANTED = Path(__file__).parent

IN_TURN = """
import importlib, json, os, runpy, sys

command, folder, several = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
importlib.import_module(command)
del sys.modules[command]
for number, words in enumerate(several):
    child = os.fork()
    if child == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{number}.{name}", os.O_CREAT | os.O_WRONLY), descriptor)
        sys.argv = [command, *words]
        runpy.run_module(command, run_name="__main__", alter_sys=True)
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{folder}/{number}.code", "w") as file:
        file.write(str(code))
"""
"""Runs a command several times, each in a process that is forked when all that it needs is imported."""

DEFAULTS = {"preset": "smoke", "device": "cpu", "timing.max_seconds": "0.002"}


def completed(command: str, options: Sequence[str]) -> list[str]:
    """The options of a command, and before them those that it has unless they say otherwise."""
    defaults = DEFAULTS | ({"tracking": "none"} if command in ("sweep", "compare") else {})
    defaults |= {"allow": "all"} if command == "sweep" else {}
    given = {option.split("=")[0] for option in options}
    return [*(f"{name}={value}" for name, value in defaults.items() if name not in given), *options]


def heed_ctrl_c() -> None:
    """As a command on a terminal does: what a script runs in its background ignores SIGINT, children too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Tree:
    """The copy. It has a folder for temporary files of its own, and so locks of its own."""

    def __init__(self, folder: Path, *planted: str) -> None:
        self.root = folder / "tree"
        for part in ("kernel_pipeline", "kernels", "pipeline", "conf"):
            # Bytecode, too, for each command imports 200 modules; without what another process is writing.
            shutil.copytree(ROOT / part, self.root / part, ignore=shutil.ignore_patterns("*.pyc.*"))
        for name in planted:
            plant(name, self.root)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()

    def copy(self, folder: Path) -> Tree:
        """The same checkout elsewhere: to itself it is this one, with all that was measured in it."""
        made = Tree(folder)
        shutil.copytree(self.root, made.root, dirs_exist_ok=True)
        return made

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its commands."""
        return os.environ | {"TMPDIR": str(self.temporary), "COLUMNS": "200"}

    def environment(self, where: device.Device) -> Environment:
        """The device's environment as the tree's commands find it: a CPU's is this checkout's own."""
        with patch.object(environment, "LOCAL", self.root / "local"):
            return environment.fingerprint(where)

    def know_ceilings(self, where: device.Device) -> None:
        """Write ceilings for the device, so that no sweep measures them: a test beside it may use the GPU."""
        known = Ceilings(
            gpu=where.slug,
            environment=self.environment(where).of_device,
            copy_gbps=40.0 if where.kind == "cpu" else 5000.0,
            matmul_tflops={"float32": 1.0 if where.kind == "cpu" else 100.0},
            canary=None if where.kind == "cpu" else Canary(fast_us=1000.0, duration_us=1000.0),
        )
        folder = self.root / ("local/results" if where.kind == "cpu" else "results")
        write_atomically(results.ceilings_path(folder, where.slug), known.to_json())

    def start(
        self, *options: str, command: str = "sweep", variables: Mapping[str, str] | None = None, **popen: Any
    ) -> subprocess.Popen[str]:
        """Start ``python -m pipeline.sweep``, or another command about a kernel's points, in a process group
        of its own; with more environment ``variables``."""
        return subprocess.Popen(
            [sys.executable, "-m", f"pipeline.{command}", *completed(command, options)],
            cwd=self.root,
            env=self.variables | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **{"preexec_fn": heed_ctrl_c} | popen,
        )

    def sweep(self, *options: str, command: str = "sweep", **popen: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*options, command=command, **popen)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def run(self, *options: str, **rest: Any) -> str:
        """Run the command, as ``sweep`` does, which must succeed without a warning. Return what it prints."""
        done = self.sweep(*options, **rest)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def in_turn(self, command: str, *several: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
        """Run a command with these options, then with those: each to its end, in a process of its own that is
        forked when what all need is imported."""
        folder = Path(tempfile.mkdtemp(dir=self.temporary))
        words = [completed(command, options) for options in several]
        process = [sys.executable, "-c", IN_TURN, f"pipeline.{command}", str(folder), json.dumps(words)]
        subprocess.run(process, cwd=self.root, env=self.variables, check=True)
        return [
            subprocess.CompletedProcess(
                options,
                int((folder / f"{number}.code").read_text()),
                *((folder / f"{number}.{name}").read_text() for name in ("out", "err")),
            )
            for number, options in enumerate(words)
        ]

    def ledger(self, kernel: str, output: str = "outputs") -> Path:
        """The only ledger of the kernel."""
        (path,) = (self.root / output / "timings" / kernel).glob("*.jsonl")
        return path

    def rows(self, kernel: str, output: str = "outputs") -> list[Measurement]:
        """The ledger's lines, which must all be readable."""
        return read_rows(self.ledger(kernel, output), pytest.fail)

    def workers(self) -> list[int]:
        """Processes that measure for this tree and are alive."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command, where = (process / "cmdline").read_bytes(), (process / "cwd").readlink()
            except OSError:
                continue  # it has ended meanwhile, or is a zombie
            if b"kernel_pipeline.execution.fork_server" in command and where == self.root:
                found.append(int(process.name))
        return found


def forget(name: str, root: Path) -> None:
    """Remove a kernel from a copy of this repository: an author may have taken the name."""
    shutil.rmtree(root / "kernels" / name, ignore_errors=True)
    (root / "conf" / "kernel" / f"{name}.yaml").unlink(missing_ok=True)


def plant(name: str, root: Path) -> None:
    """Put a planted kernel among those of a copy of this repository; without a reference it doubles a vector,
    as ``faulty`` does."""
    forget(name, root)
    folder = root / "kernels" / name
    shutil.copytree(PLANTED / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if not (folder / "reference.py").exists():
        shutil.copy(PLANTED / "faulty" / "reference.py", folder)
    shutil.copy(PLANTED / f"{name}.yaml", root / "conf" / "kernel")


def cpu_tree(folder: Path, *planted: str) -> Tree:
    """A tree whose sweeps measure this machine's CPU."""
    tree = Tree(folder, *planted)
    tree.know_ceilings(device.cpu())
    return tree


def trust_busy_cores(tree: Tree) -> None:
    """Let rounds count times that were taken while other processes had the cores. That is for differences of
    a large factor alone."""
    file = tree.root / "pipeline/store/turns.py"
    text, strict = file.read_text(), "return None if state is not None and not state.valid else "
    assert strict in text
    file.write_text(text.replace(strict, "return "))


def size(point: Point) -> int:
    """The first number of a point's problem: how large a planted kernel's is."""
    return next(value for value in point.problem.values() if type(value) is int)
