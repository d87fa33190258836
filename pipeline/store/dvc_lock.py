"""DVC's lock file: git's version and this checkout's own version.

``dvc repro`` writes into dvc.lock what the stages read and wrote on this machine. A run may measure nothing
that git keeps: on a CPU, or on a GPU whose rows are all there. Then git's version of the file is restored,
and the next run continues from this checkout's own copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel_pipeline.files import LOCAL, write_atomically

from .. import ROOT
from . import commit
from .results import TRACKED

LOCK = ROOT / "dvc.lock"

OWN = LOCAL / "dvc.lock"
"""The lock file as left by the last run in this checkout that measured nothing for git."""

COMMITTED = LOCAL / "dvc.lock.committed"
"""A copy of git's lock file during a run, so that the next run can restore it if this run is killed."""


@contextmanager
def kept() -> Iterator[None]:
    """Let DVC continue from this checkout's own lock file, and restore git's unless the run wrote results
    that git keeps. A lock file with uncommitted edits, or outside of git, is not changed."""
    _put_right()
    if not commit.is_clean(ROOT, LOCK.name):
        yield
        return
    before = _read(LOCK)
    _write(COMMITTED, before)
    if OWN.exists():
        _write(LOCK, _read(OWN))
    try:
        yield
    finally:
        after = _read(LOCK)
        if not commit.is_clean(ROOT, *TRACKED):
            OWN.unlink(missing_ok=True)
        elif after != before:
            _write(OWN, after)
            _write(LOCK, before)
        COMMITTED.unlink(missing_ok=True)


def _put_right() -> None:
    """Clean up after a killed run: restore git's lock file, and keep the run's as this checkout's own. If
    git's has changed since, the run's stays in place."""
    if not COMMITTED.exists():
        return
    killed = _read(LOCK)
    _write(LOCK, _read(COMMITTED))
    COMMITTED.unlink()
    if commit.is_clean(ROOT, LOCK.name):
        _write(OWN, killed)
    else:
        _write(LOCK, killed)


def _read(path: Path) -> bytes:
    """Return the content of a lock file, empty if there is none."""
    return path.read_bytes() if path.exists() else b""


def _write(path: Path, content: bytes) -> None:
    if content:
        write_atomically(path, content)
    else:
        path.unlink(missing_ok=True)
