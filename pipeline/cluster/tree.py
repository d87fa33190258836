"""What goes along to a cluster's hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from pipeline import ROOT, UserError
from pipeline.store import commit

PARTS = ("conf", "kernels", "pipeline")

REPOSITORY = "repository"
"""The folder with the commits that go along, of a name that Ray does not leave out."""

ANY_COMMIT = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
"""Lets a commit be fetched by its hash, whatever branch it is on."""


@contextmanager
def packed(commits: Sequence[str] | None = None) -> Iterator[Path]:
    """A copy of the sources alone, as they are now: edits that come later go nowhere. With ``commits`` it has
    the working tree's commit and these, too, each without those before it. Raises UserError for a commit that
    the repository does not hold."""
    with tempfile.TemporaryDirectory(prefix="kernel-pipeline-tree-") as folder:
        for part in PARTS:
            shutil.copytree(ROOT / part, Path(folder, part), ignore=shutil.ignore_patterns("__pycache__"))
        if commits is not None:
            _with_commits(Path(folder), commits)
        yield Path(folder)


def _with_commits(folder: Path, commits: Sequence[str]) -> None:
    head, _ = commit.head(ROOT)
    if head == "unknown":  # no repository: rows say so there as they do here
        return
    for name in commit.SOURCES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder)
    made = folder / REPOSITORY
    _git(folder, "init", "--quiet", "--bare", str(made))
    wanted = dict.fromkeys([head, *commits])
    _git(made, "fetch", "--quiet", "--depth=1", f"--upload-pack={ANY_COMMIT}", str(ROOT), *wanted)
    _git(made, "update-ref", "--no-deref", "HEAD", head)
    # A checkout's, in which what its commit ignores is ignored.
    _git(made, "config", "core.bare", "false")
    _git(made, "read-tree", head)
    if (ROOT / ".gitignore").is_file():
        (made / "info").mkdir(exist_ok=True)
        shutil.copy(ROOT / ".gitignore", made / "info" / "exclude")


def _git(where: Path, *words: str) -> None:
    """Run git in a folder, whatever repository this process was started in."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *words], cwd=where, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["git says nothing"]
        raise UserError(f"the commits can't be packed for the cluster: {said[0].removeprefix('fatal: ')}.")


def installed(names: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that are there. Of one that is on the path twice Python imports the
    first, and so that counts."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]
    return found


def locked() -> tuple[str, ...]:
    """The names of the packages that the repository's lock pins; none outside of a checkout."""
    lock = ROOT / "locks" / "runtime.lock"
    text = lock.read_text() if lock.is_file() else ""
    return ("torch", "triton", *re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
