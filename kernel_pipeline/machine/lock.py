"""One measuring command a device at a time, across the processes of a user: what times nothing may share; and
folders and files of this user alone, where other accounts may write beside them."""

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
from types import TracebackType
from typing import IO, Self

from ..errors import UserError
from ..records.fields import visible
from .device import Device


def own_folder(path: Path, mend: str) -> Path:
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


def own_file(path: Path) -> IO[str]:
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


POLL_S = 0.2


class DeviceLock:
    """Held while a device is measured on, or by several that run on it and time nothing (``shared``): neither
    waits for its like, and each keeps the other off. A context manager.

    The operating system lets go of it when the process ends in any way, so it can't be stale. ``wait_s``
    is how long to wait for another holder (None: as long as it takes); ``say`` gets a sentence about it.
    Processes of other users, and those with other temporary folders, hold locks of their own.
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
        """The lock's file."""
        return runtime_folder() / f"{self.device.uuid or self.device.slug}.lock"

    def __enter__(self) -> Self:
        """Wait for the device. Raises UserError when it is still held after ``wait_s``, and where a lock
        can't be kept safely."""
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
                        f"{self.device.name} is being measured on by {holder}; "
                        f"gave up after {self.wait_s:g} s (wait_s=null waits)."
                    ) from None
                if not warned:
                    self.say(f"Waiting for {self.device.name}: {holder} is measuring on it.")
                    warned = True
                sleep(POLL_S)
        self._file.seek(0)
        self._file.truncate()
        # Which command, but not with what: an option may hold a password.
        self._file.write(f"process {os.getpid()} ({Path(sys.argv[0]).stem})\n")
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[str]:
        return own_file(self.path)


def runtime_folder() -> Path:
    """A folder that only this user can write, for what lasts as long as processes: ``kernel-pipeline-UID``
    among the temporary files. Not $XDG_RUNTIME_DIR, which a user's sessions have and cron jobs have not.

    Raises UserError when it is somebody else's, or can't be made.
    """
    return own_folder(
        Path(tempfile.gettempdir(), f"kernel-pipeline-{os.geteuid()}"),
        "locks are kept there; remove it, or set TMPDIR to a folder of yours that nobody else can write",
    )
