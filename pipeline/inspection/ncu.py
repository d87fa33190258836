"""Find and run Nsight Compute's command line, and explain why it can't read counters."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_pipeline.machine.fingerprint import SYSTEM_CUDA

OLDEST = (2022, 3)
"""The oldest usable version: it came with CUDA 11.8 and is the first for Hopper."""

INSTALLED = Path("/opt/nvidia/nsight-compute")
"""The folder of Nsight Compute's own package, with a folder for each version."""

SETS = ("basic", "detailed", "full")

EXTRA = (
    *(
        f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
        for what in ("sectors", "requests")
        for op in ("ld", "st")
    ),
    *(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")),
    *("dram__bytes_read.sum", "dram__bytes_write.sum"),
)
"""The metrics that rows need and some of ncu's sets lack."""


OWN = ("--profile-from-start", "off", "--target-processes", "application-only")
"""Options for a command of this package: kernels of its own process, between cudaProfilerStart and
cudaProfilerStop."""


class Unavailable(Exception):  # noqa: N818 - a state of this machine, no error
    """Counters can't be read on this machine. Has the reason and the fix."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}: {fix}")
        self.reason = reason
        self.fix = fix


class UnreadableError(Exception):
    """ncu can't show a file as a report. The text is ncu's message."""


NO_GPU = Unavailable("this machine has no NVIDIA GPU", "run the stage on a host that has one")
NO_NCU = Unavailable(
    "ncu was not found", "install Nsight Compute, which comes with a CUDA toolkit, and put ncu on PATH"
)
NO_PERMISSION = Unavailable(
    "this user may not read the GPU's performance counters",
    "start the container with --cap-add=SYS_ADMIN, or load the host's driver with the option "
    "NVreg_RestrictProfilingToAdminUsers=0",
)
BUSY = Unavailable(
    "another tool holds the GPU's performance counters",
    "end the other profiler or the monitoring service (dcgmi profile --pause) and run the stage again",
)


@dataclass(frozen=True)
class Ncu:
    """An installed ncu and its version."""

    path: Path
    version: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name and version: ``ncu 2025.3.1``."""
        return f"ncu {'.'.join(map(str, self.version[:3]))}"

    def profile(
        self,
        command: Sequence[str],
        report: Path,
        metrics: Sequence[str],
        timeout_s: float,
        cwd: Path,
        which: Sequence[str] = OWN,
    ) -> None:
        """Run a command under ncu and write its report to ``report`` (``.ncu-rep``).

        ``which`` are ncu's options that choose kernels. ncu leaves the clocks as they are and clears the
        caches before each kernel. If the command launches no kernel, there is no report. Raises Unavailable.
        """
        report.parent.mkdir(parents=True, exist_ok=True)
        fixed = [*which, "--nvtx", "--clock-control", "none"]
        fixed += ["--force-overwrite", "--export", str(report.with_suffix(""))]
        said = ""
        # ncu fails if this GPU lacks a metric; then try the set without extra metrics.
        for extra in (["--metrics", ",".join(EXTRA)], []):
            words = [str(self.path), *fixed, *selection(metrics, extra), *command]
            report.unlink(missing_ok=True)
            try:
                done = _run(words, timeout=timeout_s, cwd=cwd)
            except subprocess.TimeoutExpired as error:
                raise Unavailable(
                    f"ncu did not end within {timeout_s:g} s",
                    "choose fewer points or sets=basic, or raise timeout_s",
                ) from error
            said = f"{done.stdout}\n{done.stderr}"
            if report.is_file() or launched_nothing(said):
                return
            if not re.search(r"metric", said, re.IGNORECASE):
                break
        raise why(said)

    def page(self, report: Path, page: str) -> str:
        """Return a page of a report (``raw`` or ``details``) as CSV. The page is empty if no kernel was
        profiled. Raises UnreadableError if ncu can't show it."""
        units = ["--print-units", "base"] if page == "raw" else []
        # Some locales use a decimal comma.
        plain = os.environ | {"LC_ALL": "C"}
        words = [str(self.path), "--import", str(report), "--page", page, "--csv", *units]
        for nvtx in (["--nvtx"], []):  # some versions reject the option with --import
            done = _run([*words, *nvtx], env=plain)
            if done.returncode == 0 and '"ID"' in done.stdout:
                return done.stdout
            if done.returncode == 0 and launched_nothing(done.stdout + done.stderr):
                return ""
        raise UnreadableError(last_word(f"{done.stdout}\n{done.stderr}"))


def selection(metrics: Sequence[str], extra: Sequence[str]) -> list[str]:
    """Return ncu's options for the name of a set, or for a list of sections and metrics."""
    if len(metrics) == 1 and metrics[0] in SETS:
        return ["--set", metrics[0], *extra]
    counters = [name for name in metrics if "__" in name]
    sections = [word for name in metrics if "__" not in name for word in ("--section", name)]
    wanted = [*(extra[1].split(",") if extra else ()), *counters]
    return [*sections, *(["--metrics", ",".join(wanted)] if wanted else [])]


def find_ncu(environment: Mapping[str, str] | None = None, installed: Path = INSTALLED) -> Ncu:
    """Find the newest ncu of this machine. Raises Unavailable if there is none or it is too old."""
    environment = os.environ if environment is None else environment
    found = [ncu for path in dict.fromkeys(_candidates(environment, installed)) if (ncu := _ncu_at(path))]
    if not found:
        raise NO_NCU
    newest = max(found, key=lambda ncu: ncu.version)
    if newest.version < OLDEST:
        raise Unavailable(
            f"{newest.name} is too old", f"install {'.'.join(map(str, OLDEST))} or newer and put it on PATH"
        )
    return newest


def _candidates(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    on_path = shutil.which("ncu", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environment.get(variable):
            yield Path(environment[variable], "bin", "ncu")
    if installed == INSTALLED:
        yield SYSTEM_CUDA / "bin" / "ncu"
    yield from sorted(installed.glob("*/ncu"))


def _run(words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run ncu and capture its output. Bytes that are not valid UTF-8 are replaced."""
    return subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False, **how)


def _ncu_at(path: Path) -> Ncu | None:
    if not os.access(path, os.X_OK):
        return None
    try:
        done = _run([str(path), "--version"])
    except OSError:
        return None
    match = re.search(r"Version (\d+(?:\.\d+)+)", done.stdout)
    return Ncu(path, tuple(int(part) for part in match[1].split("."))) if match else None


def why(said: str) -> Unavailable:
    """Return the reason, from ncu's output, why it counted nothing."""
    if "ERR_NVGPUCTRPERM" in said:
        return NO_PERMISSION
    if re.search(r"profiler is already|already in use|driver resource was unavailable", said, re.IGNORECASE):
        return BUSY
    return Unavailable(f"ncu counted nothing ({last_word(said)})", "see what ncu itself says of it")


def last_word(said: str) -> str:
    """Return the first error in ncu's output, or else its last line."""
    errors = re.findall(r"^==ERROR==\s*(.+)$", said, re.MULTILINE)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = errors[0] if errors else (lines[-1] if lines else "it says nothing")
    return last[:300].rstrip(".")


def launched_nothing(said: str) -> bool:
    """Return whether ncu succeeded but found no kernel to profile."""
    return "No kernels were profiled" in said and "==ERROR==" not in said
