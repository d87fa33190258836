"""Install locked packages, each by its hash, into the environment of the Python that runs this script.

``python locks/install.py LOCK... [PIP OPTIONS...]`` installs ``LOCK.lock`` of this folder, for example
``runtime torch``. ``torch`` means the lock of torch's CPU build if an index or a folder in pip's settings has
that build, else the lock of the public index's torch with CUDA's libraries.

pip resolves nothing and installs only files whose hash is in a lock: a lock has all dependencies of its
packages. A package that is published as source only is built with the locked setuptools, not in an isolated
environment that pip would fill from an index. The script needs only pip.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import IO, NoReturn

LOCKS = Path(__file__).resolve().parent
ABSENT = "No matching distribution found for torch=="
LAST_LINES = 20
"""How many lines of pip's output are printed if pip fails."""


def take(locks: Sequence[str], options: Sequence[str], log: IO[str]) -> None:
    """Install all packages of the locks. If pip fails, exit with pip's status."""
    code, said = _run(locks, options, log)
    if code:
        _fail(code, said, log)


def take_torchs_cpu_build(options: Sequence[str], log: IO[str]) -> bool:
    """Install the lock of torch's CPU build. Returns False if there is no such lock, or no index has the
    build.

    If pip fails for another reason, such as a file with another hash, exit with pip's status.
    """
    if not (LOCKS / "torch-cpu.lock").exists():
        return False
    code, said = _run(["torch-cpu"], options, log)
    if code and any(ABSENT in line for line in said):
        return False
    if code:
        _fail(code, said, log)
    return True


def _run(locks: Sequence[str], options: Sequence[str], log: IO[str]) -> tuple[int, list[str]]:
    """Install the packages of the locks with pip. Returns pip's exit status and output lines. Shows progress
    on a terminal."""
    files = [(LOCKS / f"{name}.lock").read_text().splitlines() for name in locks]
    count = sum("==" in line and not line.startswith((" ", "#")) for lines in files for line in lines)
    print(f"Installing {', '.join(locks)}: {count} package{'s' * (count != 1)} …", flush=True)
    begun, seen, said = monotonic(), 0, []
    with subprocess.Popen(
        _pip(locks, options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None, "it is a pipe"
        for line in pip.stdout:
            log.write(line)
            said.append(line)
            seen += line.startswith(("Collecting ", "Requirement already satisfied: "))
            if sys.stdout.isatty():
                print(f"\r\033[K{seen} of {count}: {' '.join(line.split())[:60]}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    if not pip.returncode:
        print(f"{monotonic() - begun:.0f} s; pip's output: {log.name}", flush=True)
    return pip.returncode, said


def _fail(code: int, said: Sequence[str], log: IO[str]) -> NoReturn:
    sys.stderr.writelines(said[-LAST_LINES:])
    print(f"error: pip failed; its output is in {log.name}.", file=sys.stderr)
    sys.exit(code)


def _pip(locks: Sequence[str], options: Sequence[str]) -> list[str]:
    files = [word for name in locks for word in ("--requirement", str(LOCKS / f"{name}.lock"))]
    checks = ["--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517"]
    checks += ["--progress-bar", "off", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "install", *checks, *options, *files]


def main() -> None:
    """Run the command line."""
    locks = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    options = sys.argv[1 + len(locks) :]
    unknown = [name for name in locks if name != "torch" and not (LOCKS / f"{name}.lock").exists()]
    if unknown or not locks:
        known = sorted(path.stem for path in LOCKS.glob("*.lock"))
        sys.exit(f"error: name the locks to install, some of: torch {' '.join(known)}")
    # pip's output names the index, so the log is readable by its owner only and is not part of an image.
    with tempfile.NamedTemporaryFile(
        "w", prefix="kernel-pipeline-install-", suffix=".log", delete=False
    ) as log:
        take(["build"], options, log)
        others = [name for name in locks if name != "torch"]
        if "torch" in locks and not take_torchs_cpu_build(options, log):
            others.append("torch-cuda")
        if others:
            take(others, options, log)


if __name__ == "__main__":
    main()
