"""Time how long users wait for commands of this repository, in a clone of its last commit.

The clone has caches, temporary files and an MLflow store of its own, so that nothing is built or measured
there at first. It uses this Python's packages. Each wait is timed once, so other programs may slow it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from rich import box
from rich.table import Table

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import device
from pipeline import ROOT

SWEEP = ("pipeline.sweep", "kernel=softmax", "size=1024", "dtype=float32", "tracking=none", "output=results")

TRITON_EDIT = ("range(0, columns, BLOCK_SIZE)", "range(0, 0 + columns, BLOCK_SIZE)")
"""An edit that changes the code but not the loop: after an edit of a comment nothing would be measured."""

CUDA_EDIT = "\nstatic_assert(sizeof(float) == 4);\n"

LAST_LINES = 5
"""How many lines of output are shown of a command that failed."""


@dataclass(frozen=True)
class Wait:
    """A wait to time.

    ``limit`` has the most seconds that it should take, by kind of device; on another kind it is not run.
    ``before`` is done first and not timed.
    """

    what: str
    do: Callable[[Clone], None]
    limit: Mapping[str, float]
    before: Callable[[Clone], None] = lambda clone: None


def measured(names: Collection[str], chosen: device.Device, say: Callable[[str], None]) -> Table:
    """Time the named waits. Returns a table of each beside its limit; ``say`` gets a line after each."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, title_justify="left", padding=(0, 1, 0, 0))
    found.title = f"{chosen.slug}, {device.cpu_threads()} cores"
    for heading in ("wait", "what", "seconds", "limit"):
        found.add_column(heading, justify="right" if heading in ("seconds", "limit") else "left")
    with tempfile.TemporaryDirectory(prefix="waits-") as folder:
        clone = Clone(Path(folder), chosen).without_results()
        for name, wait in WAITS.items():
            if name not in names or chosen.kind not in wait.limit:
                continue
            wait.before(clone)
            begun = monotonic()
            wait.do(clone)
            seconds = monotonic() - begun
            say(f"{wait.what}: {seconds:.1f} s")
            found.add_row(name, wait.what, f"{seconds:.1f}", f"{wait.limit[chosen.kind]:g}")
    return found


class Clone:
    """The last commit of a repository in a folder of its own, with caches of its own."""

    def __init__(self, folder: Path, chosen: device.Device, source: Path = ROOT) -> None:
        self.folder = folder
        self.root = folder / "tree"
        self.chosen = chosen
        self.device = str(chosen)
        self.is_measured = False
        self.next: Clone | None = None
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        # The clone must not log to an MLflow server, and must not find what was compiled before.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        self.environment = inherited | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "DVC_SITE_CACHE_DIR": str(folder / "dvc"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        if shutil.which("git") is None:
            raise UserError("git is not there, and this command works in a clone: install git.")
        self.run("git", "clone", "--quiet", str(source), str(self.root), folder=source)

    def without_results(self) -> Self:
        """Set this device in the clone's parameters, and remove its results. Returns the clone."""
        params = self.root / "params.yaml"
        params.write_text(re.sub(r"(?m)^device: \S+", f"device: {self.chosen}", params.read_text()))
        for path in [*(self.root / "results").rglob(f"{self.chosen.slug}*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self

    def run(self, *command: str, code: int = 0, folder: Path | None = None) -> None:
        """Run a command. Raises UserError with its last lines unless it exits with ``code``."""
        done = subprocess.run(
            command,
            cwd=folder or self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != code:
            last = " ".join(done.stdout.split("\n")[-LAST_LINES:]).strip()
            raise UserError(f"{' '.join(command)} ended with {done.returncode}: {last}")

    def python(self, *words: str, code: int = 0) -> None:
        """Run ``python -m WORDS``."""
        self.run(sys.executable, "-m", *words, code=code)

    def make(self, target: str) -> None:
        """Make a target of the Makefile with this Python's packages."""
        self.run("make", target, "VENV=", f"PYTHON={sys.executable}")

    def repro(self) -> None:
        """Run ``make repro``."""
        self.make("repro")
        self.is_measured = True

    def commit_and_clone(self) -> None:
        """Commit all results, and clone that commit; nothing is built in the new clone.

        Raises UserError where nothing was measured yet.
        """
        if not self.is_measured:
            raise UserError("nothing was measured here yet; name first, too: only=[first,cloned].")
        self.run("git", "add", "--all")
        who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        self.run("git", *who, "commit", "--quiet", "--allow-empty", "--message", "Results")
        self.next = Clone(self.folder / "next", self.chosen, self.root)

    def repro_of_clone(self) -> None:
        """Run ``make repro`` in the clone of ``commit_and_clone``."""
        assert self.next is not None, "it was made before"
        self.next.repro()

    def sweep(self, *words: str) -> None:
        """Measure softmax at one size."""
        self.python(*SWEEP, f"device={self.device}", *words)

    def edited(self, name: str, change: Callable[[str], str], *words: str) -> None:
        """Edit a source file and measure the points that the edit made old."""
        path = self.root / name
        text = path.read_text()
        if change(text) == text:
            raise UserError(f"{name} no longer holds the text that this command edits.")
        path.write_text(change(text))
        self.sweep(*words)


WAITS = {
    "first": Wait("make repro, nothing built or measured", Clone.repro, {"cpu": 250, "cuda": 240}),
    "again": Wait("make repro, nothing to do", Clone.repro, {"cpu": 4, "cuda": 4}),
    "cloned": Wait(
        "make repro in a fresh clone, all of it measured and committed",
        Clone.repro_of_clone,
        {"cuda": 60},
        before=Clone.commit_and_clone,
    ),
    "cuda_edit": Wait(
        "an edit of kernels/softmax/cuda.cu, its new time at one size",
        lambda clone: clone.edited("kernels/softmax/cuda.cu", lambda text: text + CUDA_EDIT, "provider=cuda"),
        {"cuda": 20},
        before=lambda clone: clone.sweep("provider=cuda"),
    ),
    "triton_edit": Wait(
        "an edit of a Triton function, its new time at one size (without a GPU: verified)",
        lambda clone: clone.edited(
            "kernels/softmax/triton.py", lambda text: text.replace(*TRITON_EDIT), "provider=triton_online"
        ),
        {"cpu": 6, "cuda": 6},
        before=lambda clone: clone.sweep("provider=triton_online"),
    ),
    "nothing_to_sweep": Wait(
        "python -m pipeline.sweep, nothing to do",
        lambda clone: clone.sweep("provider=triton_online"),
        {"cpu": 4, "cuda": 4},
        before=lambda clone: clone.sweep("provider=triton_online"),
    ),
    "help": Wait(
        "python -m pipeline.sweep --help kernel=softmax",
        lambda clone: clone.python("pipeline.sweep", "--help", "kernel=softmax"),
        {"cpu": 1, "cuda": 1},
    ),
    "misspelt": Wait(
        "a misspelt option",
        lambda clone: clone.python("pipeline.sweep", "kernel=softmax", "prvider=torch", code=2),
        {"cpu": 1.5, "cuda": 1.5},
    ),
    "tests": Wait("make test", lambda clone: clone.make("test"), {"cpu": 300}),
}
