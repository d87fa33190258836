"""Another commit's files beside this one's."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel_pipeline.errors import UserError

REMOVES = 'cat >/dev/null; git worktree remove --force --force "$1/tree"; rm -rf "$1"'
"""Waits until its standard input ends, as it does when this process ends in any way, then tidies up."""


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """The files of a commit of the repository at ``root``, in a folder that is gone afterwards.

    A process of its own removes it, whether this process leaves the context or is killed in it.
    Raises UserError for a commit that the repository does not hold.
    """
    folder = tempfile.mkdtemp()
    remover = subprocess.Popen(
        ["sh", "-c", REMOVES, "sh", folder],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert remover.stdin is not None
    hurried = False
    try:
        path = Path(folder, "tree")
        done = _git(root, "worktree", "add", "--detach", "--quiet", str(path), commit)
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["git says nothing"]
            raise UserError(f"commit {commit[:12]} can't be checked out: {said[0]}.")
        yield path
    except KeyboardInterrupt:
        # The user waits for the command's end, which the remover outlives.
        hurried = True
        raise
    finally:
        remover.stdin.close()
        if not hurried:
            remover.wait()


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
