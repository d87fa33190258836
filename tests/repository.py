"""Git repositories that tests make, whatever the host's own configuration says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

WHO = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ALONE = {**WHO, "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder: Path, *words: str) -> str:
    """What a command of git's prints, which has to succeed."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env=os.environ | ALONE, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, *paths: str, message: str = "A tree") -> str:
    """Commit these files of a folder, or all, in a repository of its own; the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", *paths)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")
