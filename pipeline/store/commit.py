"""Which commit a working tree is at, and whether it has been edited since; which run measures."""

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

SOURCES = ("kernel_pipeline", "kernels", "pipeline", "conf", "params.yaml", "constraints.txt")
"""What a measurement depends on; results and reports that a run itself writes make no tree dirty."""


def head(root: Path, sources: Sequence[str] = SOURCES) -> tuple[str, bool]:
    """The commit's full hash and whether the sources differ from it; ``("unknown", True)`` outside of git."""
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return "unknown", True
    return commit, bool(_git(root, "status", "--porcelain", "--", *sources))


def committed_lines(path: Path) -> list[str]:
    """The lines that a file has in the last commit of its repository; none outside of git."""
    text = _git(path.parent, "show", f"HEAD:./{path.name}") if path.parent.is_dir() else None
    return (text or "").splitlines()


def versions(path: Path) -> list[str]:
    """What a file was in each commit that changed it, the newest first; nothing outside of git."""
    if not path.parent.is_dir():
        return []
    commits = (_git(path.parent, "log", "--format=%H", "--", path.name) or "").split()
    found = (_git(path.parent, "show", f"{one}:./{path.name}") for one in commits)
    return [text for text in found if text is not None]


def is_clean(root: Path, *paths: str) -> bool:
    """Whether the paths are as the commit has them, with nothing new beside; False outside of git."""
    return _git(root, "status", "--porcelain", "--", *paths) == ""


def is_unmerged(path: Path) -> bool:
    """Whether a merge goes on in which a file has a conflict; False outside of git."""
    return bool(_git(path.parent, "ls-files", "--unmerged", "--", path.name))


def unreadable(root: Path) -> str | None:
    """Why the commit of a working tree can't be read, with a command that helps, as a clause; None where it
    can."""
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
        return f"{root} is in no git repository: measure in a clone, or {here} init && {first}"
    if "unknown revision" in said:
        return f"the repository of {root} has no commit yet: {first}"
    return f"git says {reason!r}: {here} status says more"


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def new_run() -> str:
    """An id for an invocation that measures: its time, and letters that no other has."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def words(given: Sequence[str]) -> list[str]:
    """The words of a command line that may be kept and shown: none that names a tracker, which may hold a
    password, and no credentials in the others."""
    return [hidden(word) for word in given if not word.lstrip("+~").startswith("tracking")]


def command_line(name: str) -> str:
    """This process's command as a user would write it, as it may be kept."""
    return shlex.join(["python", "-m", f"pipeline.{name}", *words(sys.argv[1:])])
