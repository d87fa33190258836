"""Find compute-sanitizer, run a command under it, and read its log."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine import confinement
from kernel_pipeline.machine.compilers import packaged
from kernel_pipeline.machine.confinement import Confinement
from kernel_pipeline.machine.fingerprint import SYSTEM_CUDA
from kernel_pipeline.records.point import Point

from .. import ROOT
from ..points.notation import file_name

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")

NOT_FOUND = (
    "compute-sanitizer was not found: install a CUDA toolkit and put compute-sanitizer on PATH, or run: "
    "pip install 'nvidia-cuda-sanitizer-api>=13.4.92'."
)

PADDING_BYTES = 1024
"""The padding after each allocation, so that a write just past its end does not hit the next allocation."""

MOST_FINDINGS = 20
"""The maximum number of kinds of findings that a session keeps. The numbers of errors and warnings count all
findings."""

HEADER = "COMPUTE-SANITIZER"


@dataclass(frozen=True)
class SessionFindings:
    """The result of a session: the numbers of errors and warnings, and a line with a count for each kind of
    finding. ``trouble`` is the reason why the tool could not check everything."""

    errors: int
    warnings: int
    findings: tuple[str, ...]
    trouble: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether the session checked everything and found nothing."""
        return not (self.errors or self.warnings or self.trouble)


@dataclass(frozen=True)
class Sanitizer:
    """An installed compute-sanitizer and its version."""

    path: Path
    version: str

    def session(
        self,
        tool: str,
        where: str,
        points: Sequence[Point],
        seed: int,
        timeout_s: float,
        confined: Confinement | None = None,
    ) -> SessionFindings:
        """Return a tool's findings in a process that calls points of the kernel ``where``, on the GPU that
        CUDA_VISIBLE_DEVICES names. A point whose call failed is named in ``trouble``."""
        with tempfile.TemporaryDirectory() as folder:
            plan, failures = Path(folder, "plan.json"), Path(folder, "failures.json")
            wanted = [
                {"where": where, "name": file_name(point), "point": point.to_dict()} for point in points
            ]
            plan.write_text(json.dumps({"tool": "sanitizer", "seed": seed, "points": wanted}))
            watched = [sys.executable, "-m", f"{__package__}.watched_process", str(plan), str(failures)]
            found = self._check(tool, watched, timeout_s, Path(folder), confined)
            failed = json.loads(failures.read_text()) if failures.is_file() else {}
        if not failed or found.errors:
            return found
        name, reason = next(iter(failed.items()))
        return SessionFindings(0, found.warnings, found.findings, f"{name}: {reason}")

    def _check(
        self, tool: str, command: Sequence[str], timeout_s: float, folder: Path, confined: Confinement | None
    ) -> SessionFindings:
        """Run a command under one of the tools, which writes to ``folder``. Processes that the command starts
        are not checked."""
        log = folder / "log"
        words = [str(self.path), "--tool", tool, "--target-processes", "application-only"]
        words += ["--log-file", str(log), "--show-backtrace", "device", "--print-limit", "1000"]
        if tool == "memcheck":
            # torch and Triton make API calls that may fail; such a failure is no error of a kernel.
            words += ["--padding", str(PADDING_BYTES), "--report-api-errors", "no"]
        words += command
        if confined is not None:
            # It shares no memory of a GPU, so it gets namespaces of its own.
            confined = confined.replace(kept=(folder,), shares_gpu=False)
            words = confinement.command(confined, words)
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            # torch's caching allocator hands out parts of large blocks. An access past the end of such a part
            # would still be inside the block.
            env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return SessionFindings(0, 0, (), f"{tool} did not end within {timeout_s:g} s")
        finally:
            with suppress(ProcessLookupError):  # all of its processes have ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return parse(log.read_text(errors="replace") if log.is_file() else "", said)


def find(environment: Mapping[str, str] | None = None) -> Sanitizer:
    """Find the first working compute-sanitizer: on PATH, in a CUDA toolkit, or from PyPI. Raises UserError if
    there is none."""
    for path in _candidates(os.environ if environment is None else environment):
        if os.access(path, os.X_OK):
            with suppress(OSError):
                done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
                if match := re.search(r"Version (\d+(?:\.\d+)+)", done.stdout):
                    return Sanitizer(path, match[1])
    raise UserError(NOT_FOUND)


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    on_path = shutil.which("compute-sanitizer", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    homes = [Path(environment[name]) for name in ("CUDA_HOME", "CUDA_PATH") if environment.get(name)]
    for home in [*homes, SYSTEM_CUDA]:
        yield home / "bin" / "compute-sanitizer"
        yield home / "compute-sanitizer" / "compute-sanitizer"
    # Leave out bin/: in packages before 13.4.92 its programs lack the launcher.
    yield from packaged("compute-sanitizer/compute-sanitizer")


def parse(log: str, said: str) -> SessionFindings:
    """Parse a log. ``said`` is the output of the process, which explains a missing summary."""
    lines = [
        line.removeprefix("=========").rstrip() for line in log.splitlines() if line.startswith("=========")
    ]
    text = "\n".join(lines)
    errors = re.search(r"^ ERROR SUMMARY: (\d+) errors?", text, re.MULTILINE)
    races = re.search(r"^ RACECHECK SUMMARY: .*\((\d+) errors?, (\d+) warnings?\)", text, re.MULTILINE)
    # The line of a race begins with "Error: ", too.
    kinds = r"^ (?:Internal Sanitizer Error|Error): (?!Race |Potential |\()(.+)$"
    trouble = re.search(kinds, text, re.MULTILINE)
    why = None
    if trouble is not None:
        why = trouble[1].rstrip(".")
    elif errors is None and races is None:
        words = [line.strip() for line in said.splitlines() if line.strip()]
        why = f"it gave no summary ({words[-1][:300] if words else 'it says nothing'})"
    counts = (int(races[1]), int(races[2])) if races else (int(errors[1]) if errors else 0, 0)
    return SessionFindings(*counts, _findings(lines) if any(counts) else (), why)


def _findings(lines: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each kind of finding: the access, the function and the source line."""
    found: Counter[str] = Counter()
    current: list[str] = []

    def end() -> None:
        if current:
            found[" ".join(current)] += 1
        current.clear()

    for line in lines:
        if not line.strip():
            end()
        elif not line.startswith("     "):
            end()
            word = line.strip()
            if word != HEADER and "SUMMARY:" not in word and "Target application" not in word:
                current.append(word)
        elif current and re.match(r" {5}(at|and \w+ access at|\w+ Thread .+ at) ", line):
            # Remove the thread, by which findings of one kind differ.
            current.append(re.sub(r" Thread \([\d,]+\)", "", line.strip()))
    end()
    return tuple(
        f"{what} ({times} times)" if times > 1 else what for what, times in found.most_common(MOST_FINDINGS)
    )
