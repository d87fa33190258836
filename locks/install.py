"""Install locked packages, each by its hash, into the environment of the Python that runs this.

``python locks/install.py LOCK... [PIP OPTIONS...]`` installs ``LOCK.lock`` of this folder: ``runtime torch``.
``torch`` is the lock of torch's CPU build where an index or a folder that pip is configured with has that,
else the lock of the public index's torch with CUDA's libraries. ``--download FOLDER`` saves files instead.

Nothing is resolved, and nothing is taken whose hash no lock names: a lock holds all that its packages need.
What is published as source alone is built by the locked setuptools, not in an environment that pip would fill
from an index. This needs nothing but pip.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCKS = Path(__file__).resolve().parent
ABSENT = "No matching distribution found for torch=="


class Pip:
    """pip, installing into its environment, or downloading to a folder when one is given."""

    def __init__(self, options: Sequence[str], folder: str | None) -> None:
        verb = ["install"] if folder is None else ["download", "--dest", folder]
        checks = ["--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517"]
        self.command = [sys.executable, "-m", "pip", *verb, *checks, *options]

    def take(self, *locks: str) -> None:
        """Take all that locks hold; ends this process as pip ends when it fails."""
        done = subprocess.run([*self.command, *_files(locks)], check=False)
        if done.returncode:
            sys.exit(done.returncode)

    def has(self, lock: str) -> bool:
        """Take all that a lock holds; False where torch is not served. Ends this process as pip ends when it
        fails for another reason, as over a file with another hash."""
        if not (LOCKS / f"{lock}.lock").exists():
            return False
        done = subprocess.run(
            [*self.command, *_files([lock])], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode and ABSENT in done.stderr:
            return False
        sys.stderr.write(done.stderr)
        if done.returncode:
            sys.exit(done.returncode)
        return True


def _files(locks: Sequence[str]) -> list[str]:
    return [word for name in locks for word in ("--requirement", str(LOCKS / f"{name}.lock"))]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("locks", nargs="+", metavar="LOCK")
    parser.add_argument("--download", metavar="FOLDER")
    arguments, options = parser.parse_known_args()
    pip = Pip(options, arguments.download)
    pip.take("build")
    locks = [name for name in arguments.locks if name != "torch"]
    if "torch" in arguments.locks and not pip.has("torch-cpu"):
        locks.append("torch-cuda")
    if locks:
        pip.take(*locks)


if __name__ == "__main__":
    main()
