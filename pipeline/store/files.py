"""Files that a crash, a full disk or a second process finds whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import UserError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a reader or a crash sees the old or the new, never a part; an
    unchanged one is not touched.

    Raises UserError when it can't be written; the old file stays.
    """
    if path.exists() and path.read_bytes() == content:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}. The file is as it was.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file for this process alone, by a lock file beside it that the operating system lets go of when
    the process ends in any way. Raises UserError when the lock file can't be made."""
    beside = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = beside.open("a")
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}.") from error
    with file:
        # POSIX record locks, which NFS passes on to its server, too.
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield
