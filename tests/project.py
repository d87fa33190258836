"""A repository of its own with this one's files, to run the pipeline in as a user does."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel_pipeline import loading
from kernel_pipeline.machine import device
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain import extension
from kernel_pipeline.toolchain.extension import Place
from pipeline import ROOT
from pipeline.build import build_kernel
from pipeline.store.ledger import read_rows

PRESET = "smoke"

KERNELS = ("softmax", "square")
"""Two that differ in kind: what holds between them holds between any."""

MEASURING = ("sweep", "finals", "profile", "counters", "codegen")
"""The stages that follow a change of what is measured."""

STAGES = (
    *("environment", "ceilings", "sweep", "finals", "profile", "counters"),
    *("build", "codegen", "tune", "report", "publish"),
)

OF_MAKE = ("ARGS", "JOBS", "PROOFS", "PYTHON", "TORCH", "VENV", "WHEELHOUSE")
"""What `make test` hands on to the commands below it, if its caller set it."""


class Project:
    """A git repository in a folder, with caches, temporary files and an MLflow store that nobody shares."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        # What decides where the pipeline writes or how it runs is not inherited from whoever runs the tests.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MLFLOW_", "DVC_", "TRITON_", "GIT_", "MAKE", "PYTEST_", "COV_"))
            and name not in OF_MAKE
        }
        self.env = inherited | {
            # Python's own name for itself may be a link, so its folder is where `python` lies.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),  # the device's lock too: other tests may measure at the same time
            "DVC_SITE_CACHE_DIR": str(folder / "dvc"),
            "DVC_NO_ANALYTICS": "true",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "COLUMNS": "120",
            **{f"GIT_{who}_NAME": "Test" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "test@localhost" for who in ("AUTHOR", "COMMITTER")},
        }

    def create(self, *kernels: str) -> None:
        """Copy the files that git knows as they are now, edits included, choose the smallest grid and these
        kernels, commit."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        # As on a machine that measured nothing yet, whatever this repository has come to hold.
        (self.root / "dvc.lock").unlink(missing_ok=True)
        shutil.rmtree(self.root / "reports", ignore_errors=True)
        for name in ("timings", "ceilings", "build", "profile", "counters", "codegen"):
            shutil.rmtree(self.root / "results" / name, ignore_errors=True)
        self.set_param("preset", PRESET)
        self.set_param("kernels", ",".join(kernels))
        self.run("git", "init", "--quiet", "--initial-branch=main")
        self.commit("Start")

    def measure_less(self) -> None:
        """Leave out of the smallest grid what takes long and is there a second time: a size of softmax, what
        torch.compile makes of square, a closer look at smaller problems."""
        self.edit(f"conf/preset/{PRESET}.yaml", lambda text: f"{text}closer: largest\n")
        self.edit("conf/kernel/softmax.yaml", lambda text: f"{text}workloads:\n  smoke: {{size: [64]}}\n")
        self.edit("kernels/square/__init__.py", lambda text: re.sub(".*compiled=True.*\n", "", text))

    def adopt_builds(self) -> None:
        """Take over libraries from this repository's own build folder, built there first if need be: their
        manifests say that they are what a build here would make. Where there is no GPU, none of CUDA."""
        left_out = shutil.ignore_patterns(*([] if device.gpus() else ["cuda.*"]))
        for kernel in self.kernels():
            loaded = loading.load(kernel)
            build_kernel(Place.for_kernel(loaded), extension.sources(loaded), None)
            built = Place.for_kernel(loaded).output
            shutil.copytree(built, self.root / "build" / "kernels" / kernel, ignore=left_out)

    def run(
        self, *command: str, ok: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; fails with what it printed unless it succeeds, or fails as it should."""
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.env | dict(env or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert (done.returncode == 0) == ok, f"{command} exited with {done.returncode}:\n{said}"
        return done

    def python(
        self, *words: str, ok: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``python -m WORDS``."""
        return self.run("python", "-m", *words, ok=ok, env=env)

    def repro(self, env: Mapping[str, str] | None = None) -> list[str]:
        """``dvc repro``; the stages that it ran, in their order."""
        return ran(self.python("dvc", "repro", env=env).stdout)

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Change a file; fails if the change does nothing."""
        before = (self.root / name).read_text()
        after = change(before)
        assert after != before, f"{name} is not as the test takes it to be"
        (self.root / name).write_text(after)

    def set_param(self, name: str, value: str) -> None:
        """Set a value in params.yaml."""
        self.edit("params.yaml", lambda text: re.sub(rf"(?m)^{name}: .*$", f"{name}: {value}", text))

    def kernels(self) -> list[str]:
        """The kernels that `dvc repro` measures."""
        return str(yaml.safe_load((self.root / "params.yaml").read_text())["kernels"]).split(",")

    def read_json(self, name: str) -> Any:
        """What a JSON file holds."""
        return json.loads((self.root / name).read_bytes())

    def gpu(self) -> str:
        """The slug of the machine that the tests run on."""
        return str(self.read_json("build/environment.json")["gpu"])

    def place(self, name: str) -> Path:
        """Where this machine's ``results`` or ``reports`` lie: a CPU's beside those that git has."""
        return self.root / ("local" if self.gpu().startswith("cpu-") else "") / name

    def ledger(self, kernel: str, folder: Path | None = None) -> Path:
        return (folder or self.place("results")) / "timings" / kernel / f"{self.gpu()}.jsonl"

    def rows(self, kernel: str, folder: Path | None = None) -> dict[Point, Measurement]:
        """A ledger's rows by their points; fails on a torn one, and if a point is there twice."""
        rows = read_rows(self.ledger(kernel, folder), pytest.fail)
        found = {row.point: row for row in rows}
        assert len(found) == len(rows), "a point is there twice"
        return found

    def state(self) -> dict[str, bytes]:
        """What git and DVC know of the working tree and what this machine measured, to put back."""
        known = self.run("git", "ls-files", "-z").stdout.split("\0")
        local = (str(path.relative_to(self.root)) for path in (self.root / "local").rglob("*"))
        names = {name for name in (*known, *local) if (self.root / name).is_file()}
        return {name: (self.root / name).read_bytes() for name in sorted(names)}

    def put_back(self, state: Mapping[str, bytes]) -> None:
        """Make the files of a state as they were."""
        for name, content in state.items():
            if (self.root / name).read_bytes() != content:
                (self.root / name).write_bytes(content)
        if "local/dvc.lock" not in state:
            # By which the next `make repro` would go.
            (self.root / "local/dvc.lock").unlink(missing_ok=True)

    def tree(self, *without: str) -> dict[str, str]:
        """SHA-256 by path of every file outside of hidden folders and Python's caches."""
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
            and not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(self.root).parts)
            and not str(path.relative_to(self.root)).startswith(without or ("\0",))
        }

    def processes(self) -> dict[int, str]:
        """Command lines of the processes that run in this repository, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cwd").readlink().is_relative_to(self.root):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
            except OSError:
                continue  # it has ended, or is somebody else's
        return {pid: line for pid, line in found.items() if line}

    def kill_sweep(self, when: Callable[[], bool]) -> None:
        """Start ``dvc repro`` and, once ``when`` is true, kill DVC and the sweep as a power cut would, and
        nothing else: what they started has to end by itself."""
        with (self.root.parent / "killed.log").open("w+") as log:
            dvc = subprocess.Popen(
                ["python", "-m", "dvc", "repro"], cwd=self.root, env=self.env, stdout=log, stderr=log
            )
            try:
                wait_until(lambda: when() or dvc.poll() is not None)
                sweeps = [
                    pid
                    for pid, line in self.processes().items()
                    if re.match(r"\S*python\S* -m pipeline\.sweep ", line)
                ]
                log.seek(0)
                assert dvc.poll() is None and len(sweeps) == 1, log.read()
            finally:
                dvc.kill()
                dvc.wait()
            os.kill(sweeps[0], signal.SIGKILL)


def is_measured(point: Point) -> bool:
    """Whether a point of the smallest grid is left in ``Project.measure_less``."""
    if point.kernel == "softmax":
        return point.problem["columns"] == 64
    return point.provider != "torch_compile"


def python(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line of this Python in the repository itself or a copy, where no GPU is to be seen."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.01)


def ran(output: str) -> list[str]:
    """The stages that DVC says it ran."""
    return re.findall(r"^Running stage '([^']+)'", output, re.MULTILINE)


def skipped(output: str) -> list[str]:
    """The stages that DVC says it did not need to run."""
    return re.findall(
        r"^Stage '([^']+)' (?:didn't change, skipping|is cached - skipping)", output, re.MULTILINE
    )
