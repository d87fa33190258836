"""A copy of this repository in which the pipeline runs as a user runs it."""

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
from tests.processes import completed

PRESET = "smoke"

KERNELS = ("softmax", "square")
"""Two kernels of different kinds. What holds for both should hold for any."""

MEASURING = ("sweep", "finals", "profile", "counters", "codegen")
"""The stages that run again when a measured kernel changes."""

STAGES = (
    *("environment", "sweep", "finals", "profile", "counters"),
    *("build", "codegen", "tune", "report", "publish"),
)

DROPPED = {"softmax": ("manual", "torch_compile"), "square": ("torch_mul", "torch_pow", "torch_compile")}
"""The providers that ``Project.measure_less`` drops."""

OF_MAKE = ("ARGS", "JOBS", "PROOFS", "PYTHON", "TORCH", "VENV", "WHEELHOUSE")
"""The variables that `make test` passes on to its commands if its caller set them."""


class Project:
    """A git repository in a folder, with its own caches, temporary files and MLflow store."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        # Variables that decide where or how the pipeline runs are not inherited from the caller of the tests.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MLFLOW_", "DVC_", "TRITON_", "GIT_", "MAKE", "PYTEST_", "COV_"))
            and name not in OF_MAKE
        }
        self.env = inherited | {
            # sys.executable may be a link, so use the folder that contains it.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),  # also the device's lock: other tests may measure too
            "DVC_SITE_CACHE_DIR": str(folder / "dvc"),
            "DVC_NO_ANALYTICS": "true",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "COLUMNS": "120",
            **{f"GIT_{who}_NAME": "Test" for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": "test@localhost" for who in ("AUTHOR", "COMMITTER")},
        }

    def create(self, *kernels: str) -> None:
        """Copy the files that git tracks or would add, with local edits. Choose the smallest grid and
        these kernels, then commit."""
        listed = completed(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        # Bytecode, too: each of hundreds of commands imports 200 modules.
        for package in ("kernel_pipeline", "kernels", "pipeline"):
            for compiled in (ROOT / package).rglob("*.pyc"):
                folder = (self.root / compiled.relative_to(ROOT)).parent
                if folder.parent.is_dir():
                    folder.mkdir(exist_ok=True)
                    shutil.copy2(compiled, folder)
        # Start like a machine that has measured nothing, whatever results are in this repository.
        (self.root / "dvc.lock").unlink(missing_ok=True)
        shutil.rmtree(self.root / "reports", ignore_errors=True)
        for name in ("timings", "ceilings", "build", "profile", "counters", "codegen"):
            shutil.rmtree(self.root / "results" / name, ignore_errors=True)
        self.set_param("preset", PRESET)
        self.set_param("kernels", ",".join(kernels))
        self.run("git", "init", "--quiet", "--initial-branch=main")
        self.commit("Start")

    def measure_less(self) -> None:
        """Drop slow points of the smallest grid that add no coverage: one size of softmax, torch but for one
        way of it, and the closer look at smaller problems."""
        self.edit(f"conf/preset/{PRESET}.yaml", lambda text: f"{text}closer: largest\n")
        fewer = "unfused: []\nworkloads:\n  smoke: {size: [64]}\n"
        self.edit("conf/kernel/softmax.yaml", lambda text: text.replace("unfused: [manual]\n", "") + fewer)
        for kernel, names in DROPPED.items():
            dropped = re.compile(rf'.*Provider\("({"|".join(names)})".*\n')
            self.edit(f"kernels/{kernel}/__init__.py", lambda text, dropped=dropped: dropped.sub("", text))

    def adopt_builds(self) -> None:
        """Copy the libraries from this repository's build folder, after building any that are missing.
        Their manifests say that a build here would give the same. Without a GPU, leave out the CUDA
        libraries."""
        left_out = shutil.ignore_patterns(*([] if device.gpus() else ["cuda.*"]))
        for kernel in self.kernels():
            loaded = loading.load(kernel)
            build_kernel(Place.for_kernel(loaded), extension.sources(loaded), None)
            built = Place.for_kernel(loaded).output
            shutil.copytree(built, self.root / "build" / "kernels" / kernel, ignore=left_out)

    def run(
        self, *command: str, ok: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Fails with its output if its success differs from ``ok``."""
        done = completed(command, cwd=self.root, env=self.env | dict(env or {}))
        said = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert (done.returncode == 0) == ok, f"{command} exited with {done.returncode}:\n{said}"
        return done

    def python(
        self, *words: str, ok: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m WORDS``."""
        return self.run("python", "-m", *words, ok=ok, env=env)

    def repro(self, env: Mapping[str, str] | None = None) -> list[str]:
        """Run ``dvc repro``. Return the stages that it ran, in order."""
        return ran(self.python("dvc", "repro", env=env).stdout)

    def commit(self, message: str) -> None:
        self.run("git", "add", "--all")
        self.run("git", "commit", "--quiet", "--message", message)

    def edit(self, name: str, change: Callable[[str], str]) -> None:
        """Change a file. Fails if the change has no effect."""
        before = (self.root / name).read_text()
        after = change(before)
        assert after != before, f"{name} is not as the test takes it to be"
        (self.root / name).write_text(after)

    def set_param(self, name: str, value: str) -> None:
        """Set a value in params.yaml."""
        self.edit("params.yaml", lambda text: re.sub(rf"(?m)^{name}: .*$", f"{name}: {value}", text))

    def kernels(self) -> list[str]:
        """Return the kernels that `dvc repro` measures."""
        return str(yaml.safe_load((self.root / "params.yaml").read_text())["kernels"]).split(",")

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        return json.loads((self.root / name).read_bytes())

    def gpu(self) -> str:
        """Return the slug of the machine that runs the tests."""
        return str(self.read_json("build/environment.json")["gpu"])

    def place(self, name: str) -> Path:
        """Return this machine's ``results`` or ``reports`` folder. A CPU's is in local/, outside of git."""
        return self.root / ("local" if self.gpu().startswith("cpu-") else "") / name

    def ledger(self, kernel: str, folder: Path | None = None) -> Path:
        return (folder or self.place("results")) / "timings" / kernel / f"{self.gpu()}.jsonl"

    def rows(self, kernel: str, folder: Path | None = None) -> dict[Point, Measurement]:
        """Return a ledger's rows by their points. Fails on a torn line, and on a point with two rows."""
        rows = read_rows(self.ledger(kernel, folder), pytest.fail)
        found = {row.point: row for row in rows}
        assert len(found) == len(rows), "a point is there twice"
        return found

    def state(self) -> dict[str, bytes]:
        """Return the contents of all tracked files and of local/, for ``put_back``."""
        known = self.run("git", "ls-files", "-z").stdout.split("\0")
        local = (str(path.relative_to(self.root)) for path in (self.root / "local").rglob("*"))
        names = {name for name in (*known, *local) if (self.root / name).is_file()}
        return {name: (self.root / name).read_bytes() for name in sorted(names)}

    def put_back(self, state: Mapping[str, bytes]) -> None:
        """Restore the files of a state."""
        for name, content in state.items():
            if (self.root / name).read_bytes() != content:
                (self.root / name).write_bytes(content)
        if "local/dvc.lock" not in state:
            # The next `make repro` would use it.
            (self.root / "local/dvc.lock").unlink(missing_ok=True)

    def tree(self, *without: str) -> dict[str, str]:
        """Return the SHA-256 of every file by its path, without hidden folders and Python's caches."""
        return {
            str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
            and not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(self.root).parts)
            and not str(path.relative_to(self.root)).startswith(without or ("\0",))
        }

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes that run in this repository, by process id."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cwd").readlink().is_relative_to(self.root):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
            except OSError:
                continue  # the process has ended, or another user owns it
        return {pid: line for pid, line in found.items() if line}

    def kill_sweep(self, when: Callable[[], bool]) -> None:
        """Start ``dvc repro`` and kill DVC and the sweep once ``when()`` is true, as a power cut would.
        Their child processes must end by themselves."""
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
    """Return whether ``Project.measure_less`` keeps a point of the smallest grid."""
    is_kept = point.kernel != "softmax" or point.problem["columns"] == 64
    return is_kept and point.provider not in DROPPED[point.kernel]


def python(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this Python with a command line in the repository or a copy of it, with all GPUs hidden."""
    return completed(
        [sys.executable, *command], cwd=cwd, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment
    )


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.01)


def ran(output: str) -> list[str]:
    """Return the stages that DVC reports as run."""
    return re.findall(r"^Running stage '([^']+)'", output, re.MULTILINE)


def skipped(output: str) -> list[str]:
    """Return the stages that DVC reports as skipped."""
    return re.findall(
        r"^Stage '([^']+)' (?:didn't change, skipping|is cached - skipping)", output, re.MULTILINE
    )
