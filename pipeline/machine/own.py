"""Folders and files of this user's own, where other accounts may write beside them: among temporary files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO

from pipeline import UserError


def folder(path: Path, mend: str) -> Path:
    """Make a folder that only this user can write, unless it is there, and give its path.

    Raises UserError when it can't be made, or is a link, somebody else's, or for others to write; ``mend``
    says what it is for and what to do.
    """
    try:
        with suppress(FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise UserError(f"can't make {path}: {error.strerror}; {mend}.") from error
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        raise UserError(f"{path} is not a folder of this user alone, and {mend}.")
    return path


def file(path: Path) -> IO[str]:
    """A file to read and write, made where there is none. No link is followed, and no pipe is waited for.

    Raises UserError when it can't be opened, or is not a file of this user alone.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise UserError(f"can't lock {path}: {error.strerror}; remove it.") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise UserError(f"can't lock {path}: it is not a file of this user alone; remove it.")
    return os.fdopen(descriptor, "r+", errors="replace")
