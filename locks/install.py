"""Install locked packages, each by its hash, into the environment of the Python that runs this.

``python locks/install.py LOCK... [PIP OPTIONS...]`` installs ``LOCK.lock`` of this folder: ``runtime torch``.
``torch`` is the lock of torch's CPU build where an index or a folder that pip is configured with has that,
else the lock of the public index's torch with CUDA's libraries.

Nothing is resolved, and nothing is taken whose hash no lock names: a lock holds all that its packages need.
What is published as source alone is built by the locked setuptools, not in an environment that pip would fill
from an index. This needs nothing but pip.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
ABSENT = "No matching distribution found for torch=="


def take(locks: Sequence[str], options: Sequence[str]) -> None:
    """Install all that locks hold; ends this process as pip ends when it fails."""
    done = subprocess.run(_pip(locks, options), check=False)
    if done.returncode:
        sys.exit(done.returncode)


def take_torchs_cpu_build(options: Sequence[str]) -> bool:
    """Install the lock of torch's CPU build; False where that is not served.

    Ends this process as pip ends when it fails for another reason, as over a file with another hash.
    """
    if not (LOCKS / "torch-cpu.lock").exists():
        return False
    done = subprocess.run(_pip(["torch-cpu"], options), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode and ABSENT in done.stderr:
        return False
    sys.stderr.write(done.stderr)
    if done.returncode:
        sys.exit(done.returncode)
    return True


def _pip(locks: Sequence[str], options: Sequence[str]) -> list[str]:
    files = [word for name in locks for word in ("--requirement", str(LOCKS / f"{name}.lock"))]
    checks = ["--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517"]
    return [sys.executable, "-m", "pip", "install", *checks, *options, *files]


def main() -> None:
    """The command line."""
    locks = list(takewhile(lambda word: not word.startswith("-"), sys.argv[1:]))
    options = sys.argv[1 + len(locks) :]
    unknown = [name for name in locks if name != "torch" and not (LOCKS / f"{name}.lock").exists()]
    if unknown or not locks:
        known = sorted(path.stem for path in LOCKS.glob("*.lock"))
        sys.exit(f"error: name locks to install, of: torch {' '.join(known)}")
    take(["build"], options)
    others = [name for name in locks if name != "torch"]
    if "torch" in locks and not take_torchs_cpu_build(options):
        others.append("torch-cuda")
    if others:
        take(others, options)


if __name__ == "__main__":
    main()
