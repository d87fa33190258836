"""Another commit's files beside this one's."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import UserError


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """The files of a commit of the repository at ``root``, in a folder that is gone afterwards.

    Raises UserError for a commit that the repository does not hold.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tree")
        done = _git(root, "worktree", "add", "--detach", "--quiet", str(path), commit)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["git says nothing"]
            raise UserError(f"commit {commit[:12]} can't be checked out: {said[0]}.")
        try:
            yield path
        finally:
            _git(root, "worktree", "remove", "--force", str(path))


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
