"""Device locks, so that only one command of a user measures on a device at a time; and private folders and
files in places where other accounts may write."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Self

from ..errors import UserError
from ..records.fields import visible
from .device import Device


def own_folder(path: Path, mend: str) -> Path:
    """Make a folder that only this user can write, if it does not exist, and return its path.

    Raises UserError if it can't be made, is a link, belongs to another user, or is writable by others. The
    message ends with ``mend``, which says what the folder is for and what to do.
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
        raise UserError(f"{path} is not a folder that you own and only you can write, and {mend}.")
    return path


def own_file(path: Path) -> IO[str]:
    """Open a file for reading and writing, and create it if it does not exist. Links are not followed, and
    opening does not block on a pipe.

    Raises UserError if it can't be opened, or is not a regular file of this user alone.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise UserError(f"can't lock {path}: {error.strerror}; remove it.") from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise UserError(
            f"can't lock {path}: it is not a regular file that you own, with one link; remove it."
        )
    return os.fdopen(descriptor, "r+", errors="replace")


POLL_S = 0.2


class DeviceLock:
    """A context manager that locks a device: exclusively for a command that measures, or ``shared`` by
    commands that use the device without timing.

    The operating system releases the lock when the process ends in any way, so it can't be stale. ``wait_s``
    is the time to wait for another holder in seconds (None: no limit); ``say`` is called with a sentence that
    names the holder. Processes of other users or with other temporary folders use other locks.
    """

    def __init__(
        self, device: Device, wait_s: float | None, say: Callable[[str], None], *, shared: bool = False
    ) -> None:
        self.device = device
        self.wait_s = wait_s
        self.say = say
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._file: IO[str] | None = None

    @property
    def path(self) -> Path:
        """The lock file."""
        return runtime_folder() / f"{self.device.uuid or self.device.slug}.lock"

    def __enter__(self) -> Self:
        """Wait for the device and lock it. Raises UserError if it is still held after ``wait_s``, and if the
        lock file is not safe."""
        self._file = self._open()
        begin, warned = monotonic(), False
        while True:
            try:
                fcntl.flock(self._file, self._kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                self._file.seek(0)
                holder = visible(self._file.read(100).strip()) or "another process"
                if self.wait_s is not None and monotonic() - begin >= self.wait_s:
                    self._file.close()
                    raise UserError(
                        f"{holder} is still measuring on {self.device.name}; "
                        f"gave up after {self.wait_s:g} s (wait_s=null waits without limit)."
                    ) from None
                if not warned:
                    self.say(f"Waiting for {self.device.name}: {holder} is measuring on it.")
                    warned = True
                sleep(POLL_S)
        self._file.seek(0)
        self._file.truncate()
        # Write the command without its options, which may contain a password.
        self._file.write(f"process {os.getpid()} ({Path(sys.argv[0]).stem})\n")
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[str]:
        return own_file(self.path)


def runtime_folder() -> Path:
    """Return a folder for temporary files that only this user can write: ``kernel-pipeline-UID`` in the
    folder of temporary files. $XDG_RUNTIME_DIR is not used, because cron jobs do not have it.

    Raises UserError if the folder belongs to somebody else or can't be made.
    """
    return own_folder(
        Path(tempfile.gettempdir(), f"kernel-pipeline-{os.geteuid()}"),
        "locks are kept there; remove it, or set TMPDIR to a folder of yours that nobody else can write",
    )
