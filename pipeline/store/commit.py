"""Find the commit of a working tree and whether it has edits, and name the runs that measure."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernel_pipeline.records.credentials import hidden

from .. import as_typed

SOURCES = ("kernel_pipeline", "kernels", "pipeline", "conf", "params.yaml", "constraints.txt")
"""The paths that a measurement depends on. Results and reports are not among them: a run writes them
itself."""


def head(root: Path, sources: Sequence[str] = SOURCES) -> tuple[str, bool]:
    """Return the commit's full hash and whether the sources differ from it; ``("unknown", True)`` outside of
    git."""
    commit = git(root, "rev-parse", "HEAD")
    if commit is None:
        return "unknown", True
    return commit, bool(git(root, "status", "--porcelain", "--", *sources))


def committed_lines(path: Path) -> list[str]:
    """Return the lines of a file in the last commit of its repository; none outside of git."""
    text = git(path.parent, "show", f"HEAD:./{path.name}") if path.parent.is_dir() else None
    return (text or "").splitlines()


def versions(path: Path) -> list[str]:
    """Return the text of a file in each commit that changed it, the newest first; none outside of git."""
    if not path.parent.is_dir():
        return []
    commits = (git(path.parent, "log", "--format=%H", "--", path.name) or "").split()
    found = (git(path.parent, "show", f"{one}:./{path.name}") for one in commits)
    return [text for text in found if text is not None]


def is_clean(root: Path, *paths: str) -> bool:
    """Whether the paths are as in the commit, without untracked files; False outside of git."""
    return git(root, "status", "--porcelain", "--", *paths) == ""


def unreadable(root: Path) -> str | None:
    """Return why the commit of a working tree can't be read, as a clause with a command that helps; None if
    it can."""
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        return "git is not installed: apt-get install git"
    if done.returncode == 0:
        return None
    said = done.stderr.strip()
    reason = (said.splitlines() or ["it says nothing"])[0].removeprefix("fatal: ").rstrip(".")
    here = f"git -C {shlex.quote(str(root))}"
    first = f"{here} add --all && {here} commit --message first"
    if own := re.search(r"^\s*(git config --global --add safe\.directory .+)$", said, re.MULTILINE):
        return f"git says {reason!r}: {own[1]}"
    if "not a git repository" in said:
        return f"{root} is not in a git repository: measure in a clone, or {here} init && {first}"
    if "unknown revision" in said:
        return f"the repository of {root} has no commit yet: {first}"
    return f"git says {reason!r}: {here} status says more"


def git(root: Path, *words: str) -> str | None:
    """Return the output of a git command; None if it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def new_run() -> str:
    """Return an id for a run: the time, and random digits that no other run has."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def words(given: Sequence[str]) -> list[str]:
    """Return the words of a command line that may be kept and shown. Words that name a tracker are dropped,
    since they may hold a password. Credentials in other words are hidden."""
    return [hidden(word) for word in given if not word.lstrip("+~").startswith("tracking")]


def command_line(name: str) -> str:
    """Return this process's command as a user would write it, without credentials."""
    return as_typed(name, *words(sys.argv[1:]))
