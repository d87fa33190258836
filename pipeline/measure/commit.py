"""Which commit the working tree is at, and whether it has been edited since."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = ("kernels", "pipeline", "conf", "params.yaml", "constraints.txt")
"""What a measurement depends on; results and reports that a run itself writes make no tree dirty."""


def head(root: Path) -> tuple[str, bool]:
    """The commit's full hash and whether the sources differ from it; ``("unknown", True)`` outside of git."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return "unknown", True
    return commit, bool(_git(root, "status", "--porcelain", "--", *SOURCES))


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
