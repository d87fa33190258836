"""Check out the files of another commit beside this commit's files."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel_pipeline.errors import UserError

REMOVES = 'cat >/dev/null; git worktree remove --force --force "$1/tree"; rm -rf "$1"'
"""A shell script that waits until its standard input ends, as it does when this process ends in any way, and
then removes the worktree."""


@contextmanager
def worktree(root: Path, commit: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit of the repository at ``root``, which is removed afterwards.

    A separate process removes it, even if this process is killed. Raises UserError for a commit that the
    repository does not hold.
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
        # The user waits for the command to end; the remover outlives it.
        hurried = True
        raise
    finally:
        remover.stdin.close()
        if not hurried:
            remover.wait()


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
