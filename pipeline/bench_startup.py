"""How long people wait: the first run, a run with nothing to do, an edit until its new times, the tests.

    python -m pipeline.bench_startup
    python -m pipeline.bench_startup only=[nothing_to_sweep,help]
    python -m pipeline.bench_startup device=cpu

Works in a clone of the last commit, with caches, temporary files and an MLflow store of its own, so that
nothing is built or measured there at first; packages are this Python's. ``first_table``, ``again`` and
``cloned`` need ``first`` before them. Each is one run: other programs on the machine count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from rich import box
from rich.table import Table

from pipeline import ROOT, UserError, unknown
from pipeline.command.options import BenchStartupConfig
from pipeline.command.run import console, run_stage, say
from pipeline.machine import device
from pipeline.reporting.numbers import print_wide

SWEEP = ("pipeline.sweep", "kernel=softmax", "size=1024", "dtype=float32", "tracking=none", "output=results")

TRITON_EDIT = ("range(0, columns, BLOCK_SIZE)", "range(0, 0 + columns, BLOCK_SIZE)")
"""Another definition of the same loop: a comment would measure nothing."""

CUDA_EDIT = "\nstatic_assert(sizeof(float) == 4);\n"

FIRST_TABLE = ", by the sweeps"
"""In the title of the table that ``make repro`` shows first (``closing.show_first``)."""

STAGE = re.compile(r"(\w+) +(\d+\.\d) s\b")
"""How a line of ``make repro`` begins that says how long a stage took."""

LAST_LINES = 5
"""Of a command that failed."""


@dataclass(frozen=True)
class Wait:
    """Something to wait for. ``limit`` are the seconds that it should take at most, by the kind of device;
    a kind that is not named has none. What is done ``before`` is not waited for. What ``do`` returns are the
    seconds, where they are not those that it took itself."""

    what: str
    do: Callable[[Clone], float | None]
    limit: Mapping[str, float]
    before: Callable[[Clone], None] = lambda clone: None


def run(config: BenchStartupConfig) -> None:
    """Wait for each, and print the table."""
    chosen = device.resolve(config.device)
    for name in config.only or ():
        if name not in WAITS:
            raise unknown("wait", name, WAITS)
    names = [name for name in WAITS if config.only is None or name in config.only]
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, title_justify="left", padding=(0, 1, 0, 0))
    found.title = f"{chosen.slug}, {device.cpu_threads()} cores"
    for heading in ("wait", "what", "seconds", "limit"):
        found.add_column(heading, justify="right" if heading in ("seconds", "limit") else "left")
    with tempfile.TemporaryDirectory(prefix="bench-startup-") as folder:
        clone = Clone(Path(folder), chosen).without_results()
        for name in names:
            wait = WAITS[name]
            limit = wait.limit.get(chosen.kind)
            if limit is None:
                continue
            with console.status(f"{wait.what} …"):
                wait.before(clone)
                begun = monotonic()
                told = wait.do(clone)
                seconds = monotonic() - begun if told is None else told
            say(f"{wait.what}: {seconds:.1f} s")
            found.add_row(name, wait.what, f"{seconds:.1f}", f"{limit:g}")
    print_wide(console, found)


class Clone:
    """The last commit of a repository in a folder of its own, with caches of its own."""

    def __init__(self, folder: Path, chosen: device.Device, source: Path = ROOT) -> None:
        self.folder = folder
        self.root = folder / "tree"
        self.chosen = chosen
        self.device = str(chosen)
        self.first_table_s: float | None = None
        self.next: Clone | None = None
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        # Nothing of the clone's reaches a team's server or finds what was compiled before.
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
        """The same where this machine has measured nothing yet."""
        params = self.root / "params.yaml"
        params.write_text(re.sub(r"(?m)^device: \S+", f"device: {self.chosen}", params.read_text()))
        for path in [*(self.root / "results").rglob(f"{self.chosen.slug}*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self

    def run(
        self,
        *command: str,
        code: int = 0,
        folder: Path | None = None,
        see: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Run a command; ``see`` gets each line that it says. Raises UserError with its last words unless it
        ends as it should."""
        last: deque[str] = deque(maxlen=LAST_LINES)
        with subprocess.Popen(
            command,
            cwd=folder or self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None, "it is a pipe"
            for line in process.stdout:
                see(line)
                if line.strip():
                    last.append(line.strip())
        if process.returncode != code:
            raise UserError(f"{' '.join(command)} ended with {process.returncode}: {' '.join(last)}")

    def python(self, *words: str, code: int = 0) -> None:
        """``python -m WORDS``."""
        self.run(sys.executable, "-m", *words, code=code)

    def make(self, target: str, see: Callable[[str], None] = lambda line: None) -> None:
        """A target of the Makefile with this Python's packages."""
        self.run("make", target, "VENV=", f"PYTHON={sys.executable}", see=see)

    def repro(self) -> None:
        """``make repro``; says how long each stage took, and notes when the first table was there."""
        begun = monotonic()

        def see(line: str) -> None:
            if stage := STAGE.match(line):
                say(f"  {stage[1]} {stage[2]} s, until {monotonic() - begun:.1f} s")
            if self.first_table_s is None and FIRST_TABLE in line:
                self.first_table_s = monotonic() - begun

        self.make("repro", see)

    def first_table(self) -> float:
        """Seconds from the begin of the first run to its first table. Raises UserError where nothing was
        measured yet."""
        if self.first_table_s is None:
            raise UserError("nothing was measured here yet; name first, too: only=[first,first_table].")
        return self.first_table_s

    def commit_and_clone(self) -> None:
        """Commit all that was measured, and make a clone of that, in which nothing is built. Raises UserError
        where nothing was measured yet."""
        self.first_table()
        self.run("git", "add", "--all")
        who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        self.run("git", *who, "commit", "--quiet", "--allow-empty", "--message", "Results")
        self.next = Clone(self.folder / "next", self.chosen, self.root)

    def repro_of_clone(self) -> None:
        """``make repro`` in that clone."""
        assert self.next is not None, "it was made before"
        self.next.repro()

    def sweep(self, *words: str) -> None:
        """Measure softmax at one size."""
        self.python(*SWEEP, f"device={self.device}", *words)

    def edited(self, name: str, change: Callable[[str], str], *words: str) -> None:
        """Edit a source and measure what it changed."""
        path = self.root / name
        text = path.read_text()
        if change(text) == text:
            raise UserError(f"{name} is not as this command takes it to be.")
        path.write_text(change(text))
        self.sweep(*words)


WAITS = {
    "first": Wait("make repro, nothing built or measured", Clone.repro, {"cpu": 180, "cuda": 240}),
    "first_table": Wait("its first table is on the screen", Clone.first_table, {"cuda": 60}),
    "again": Wait("make repro, nothing to do", Clone.repro, {"cpu": 3, "cuda": 3}),
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
        {"cpu": 1.5, "cuda": 1.5},
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
        {"cpu": 1, "cuda": 1},
    ),
    "tests": Wait("make test", lambda clone: clone.make("test"), {"cpu": 240}),
}


if __name__ == "__main__":
    run_stage("bench_startup", BenchStartupConfig, run)
