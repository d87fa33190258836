"""Stages' commands that `make repro` starts before DVC comes to them: beside a stage that measures on a GPU,
whose times don't feel what its host does, or beside one that leaves most cores idle. They call nothing on the
GPU.

DVC runs one stage after the other. What a command has made by then is kept as after any earlier run, so that
DVC finds it with little left to do.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Any, Self

import yaml

from pipeline.execution.compile_pool import NICENESS
from pipeline.machine.device import cpu_threads
from pipeline.machine.reaper import under_reaper

BESIDE = {
    "ceilings": ("build",),
    "finals": ("codegen", "offline=true"),
    "tune": ("publish", "reports=null"),
}
"""By stage the one whose command is started with it, and what its command line gets more: a sweep needs
libraries first, and nothing of finals is code. When ``tune`` begins, all is there that runs in MLflow show. A
report is made anew after it: only the run that holds it has to wait."""

FEWEST_CORES = 8
"""On fewer, who measures and DVC itself would wait for compilers."""


class Early:
    """Commands that run beside stages, as dvc.yaml and params.yaml in ``root`` have them. ``log`` gets a line
    for each. A context manager; who leaves it ends them."""

    def __init__(self, root: Path, log: IO[str]) -> None:
        self._root = root
        self._log = log
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def stage_begins(self, name: str, kind: str) -> None:
        """DVC begins a stage on a device of this kind: what was started of it early ends, for it is run
        now."""
        self.look()
        self._end(name)
        if name not in BESIDE or kind != "cuda" or cpu_threads() < FEWEST_CORES:
            return
        early, *words = BESIDE[name]
        program = shutil.which("nice")
        command = command_of(self._root, early)
        if program is None or command is None:
            return
        command += words
        self._log.write(f"Beside {name}: {shlex.join(command)}\n")
        process = subprocess.Popen(
            under_reaper([program, "-n", str(NICENESS), *command]),
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            # DVC's own run of it says the same again.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._running[early] = process, monotonic()

    def look(self) -> None:
        """Say of those that have ended how long they ran."""
        for name, (process, began) in list(self._running.items()):
            if (code := process.poll()) is not None:
                how = f", and failed with {code}" if code else ""
                self._log.write(f"{name} ran beside others for {monotonic() - began:.1f} s{how}.\n")
                del self._running[name]

    def _end(self, name: str) -> None:
        if name in self._running:
            process, began = self._running.pop(name)
            process.terminate()
            process.wait()
            self._log.write(f"{name} ran beside others for {monotonic() - began:.1f} s, not to its end.\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        for name in list(self._running):
            self._end(name)


def command_of(root: Path, stage: str) -> list[str] | None:
    """The words of a stage's command in dvc.yaml, of several the first, with the values of params.yaml; None
    where it has none."""
    stages: Mapping[str, Any] = yaml.safe_load((root / "dvc.yaml").read_text())["stages"]
    values: Mapping[str, Any] = yaml.safe_load((root / "params.yaml").read_text())
    if stage not in stages:
        return None
    command = stages[stage]["cmd"]
    first = command if isinstance(command, str) else command[0]
    text = re.sub(r"\$\{(\w+)\}", lambda found: str(values[found[1]]), first)
    return shlex.split(text)
