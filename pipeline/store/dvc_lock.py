"""DVC's lock file, as git has it and as this checkout has it.

``dvc repro`` writes into dvc.lock what the stages read and wrote on this machine. A run may measure nothing
that git keeps: on a CPU, or on a GPU whose rows are all there. Then git's version of the file is put back,
and the next run goes on from this checkout's own copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernel_pipeline.files import write_atomically
from pipeline import ROOT
from pipeline.store import commit
from pipeline.store.results import LOCAL, TRACKED

LOCK = ROOT / "dvc.lock"

OWN = LOCAL / "dvc.lock"
"""The lock file as left by the last run in this checkout that measured nothing for git."""

COMMITTED = LOCAL / "dvc.lock.committed"
"""Git's lock file, kept here while a run goes on, so that the next run can restore it if this one is
killed."""


@contextmanager
def kept() -> Iterator[None]:
    """Let DVC go on from this checkout's own lock file, and restore git's unless the run wrote results that
    git keeps. A lock file with uncommitted edits, or outside of git, is left alone."""
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
