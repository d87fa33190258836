"""DVC's lock file, as git has it and as this checkout has it.

``dvc repro`` writes into dvc.lock what the stages read and wrote on the machine at hand. A run may measure
nothing that git keeps: on a CPU, or on a GPU whose rows are all there. Then git's file stays as it was
committed, and the next run goes on from this checkout's own.
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
"""As the last run here left it that measured nothing for git."""

COMMITTED = LOCAL / "dvc.lock.committed"
"""As git has it, while a run goes on: a run that is killed is put right by the next one."""


@contextmanager
def kept() -> Iterator[None]:
    """Let DVC go on from this checkout's own lock file, and put git's back if nothing came of it that git
    keeps. A lock file with edits that are not committed is left alone, and so is one outside of git."""
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
    """Undo what a killed run has left: its lock file becomes this checkout's own, unless git's is another one
    by now."""
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
    """What a lock file holds; nothing where there is none."""
    return path.read_bytes() if path.exists() else b""


def _write(path: Path, content: bytes) -> None:
    if content:
        write_atomically(path, content)
    else:
        path.unlink(missing_ok=True)
