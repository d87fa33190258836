"""Git repositories for tests, independent of the host's git configuration."""

import os
from pathlib import Path

from tests.processes import completed

WHO = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ALONE = {**WHO, "GIT_CONFIG_GLOBAL": os.devnull}


def git(folder: Path, *words: str) -> str:
    """Run a git command, which must succeed. Return its output."""
    done = completed(["git", *words], cwd=folder, env=os.environ | ALONE, check=True)
    return done.stdout.strip()


def commit(folder: Path, *paths: str, message: str = "A tree") -> str:
    """Commit these files of a folder, or all files, in the folder's own repository. Return the commit."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all", *paths)
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")
