"""A command that runs on one host of a cluster as a whole: in a copy of the sources of its own, on the
station's device. What it writes below its output folder goes back as it comes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Condition, Thread

from pipeline import ROOT
from pipeline.cluster.messages import Errand, News
from pipeline.cluster.tree import REPOSITORY
from pipeline.machine.device import Device
from pipeline.machine.reaper import under_reaper

LINES = ".jsonl"
"""What a file is named that is only ever appended to: its end alone goes back."""

MODULE = "pipeline.command.elsewhere"
"""What runs an errand."""

Files = Mapping[str, bytes]
"""The contents of files by their paths below the output folder."""


class RunningErrand:
    """An errand that was started. A process that ends it takes all with it that it has started."""

    def __init__(self, errand: Errand, device: Device, drawn: str, files: Files) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-pipeline-errand-")
        root = Path(self._folder.name, "tree")
        _copy(ROOT, root)
        (root / "local").mkdir()
        (root / "local" / "host").write_text(drawn)
        self._output = root / str(errand.options["output"])
        for name, content in files.items():
            place = self._output / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        self._seen = {name: _state(self._output / name) for name in files}
        self._lines: list[str] = []
        self._ended = False
        self._changed = Condition()
        environment = os.environ | {"COLUMNS": str(errand.columns), "PYTHONPATH": str(root)}
        # What Ray leaves visible is counted from 0, and rows name a GPU by its number on the host.
        if environment.get("CUDA_VISIBLE_DEVICES", "").isdigit():
            del environment["CUDA_VISIBLE_DEVICES"]
        told = errand.model_dump() | {"options": {**errand.options, "device": str(device)}}
        self._process = subprocess.Popen(
            under_reaper([sys.executable, "-m", MODULE]),
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self._process.stdin is not None
        with self._process.stdin as asked:
            asked.write(json.dumps(told))
        Thread(target=self._read, daemon=True).start()

    def news(self, seconds: float) -> tuple[str, dict[str, bytes], dict[str, bytes]]:
        """A ``News``, waiting for it for so long; what files have grown by, and the files that are new or
        others than before."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ended, seconds)
            lines, self._lines = self._lines, []
            ended = self._ended
        code = self._process.wait() if ended else None
        grown, whole = self._written()
        if ended:
            self._folder.cleanup()
        return News(lines=tuple(lines), code=code).model_dump_json(), grown, whole

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _written(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        grown: dict[str, bytes] = {}
        whole: dict[str, bytes] = {}
        for path in _files(self._output):
            name = str(path.relative_to(self._output))
            state, before = _state(path), self._seen.get(name)
            if state == before:
                continue
            content = path.read_bytes()
            if path.suffix != LINES:
                whole[name], self._seen[name] = content, state
                continue
            begin = 0 if before is None else before[0]
            new = content[begin : content.rfind(b"\n") + 1]  # a line that is being written comes later
            if new:
                grown[name] = new
                self._seen[name] = begin + len(new), state[1]
        return grown, whole


def _copy(tree: Path, root: Path) -> None:
    """The sources at ``tree`` as a checkout; builds are those that the host keeps."""
    shutil.copytree(tree, root, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "local"))
    if (root / REPOSITORY).is_dir():
        (root / REPOSITORY).rename(root / ".git")


def _files(folder: Path) -> Iterator[Path]:
    """What an errand has written; names that begin with a dot are of files that are being written, and of
    locks."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
