"""One measuring command a device at a time, across processes."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import IO, Self

from pipeline import UserError
from pipeline.machine.device import Device
from pipeline.store import commit

POLL_S = 0.2


class DeviceLock:
    """Held while a device is measured on. A context manager.

    The operating system lets go of it when the process ends in any way, so it can't be stale. ``wait_s``
    is how long to wait for another holder (None: as long as it takes); ``say`` gets a sentence about it.
    """

    def __init__(self, device: Device, wait_s: float | None, say: Callable[[str], None]) -> None:
        self.device = device
        self.wait_s = wait_s
        self.say = say
        self.path = Path(tempfile.gettempdir()) / f"kernel-pipeline-{device.uuid or device.slug}.lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self._file = self._open()
        begin, told = monotonic(), False
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = self.path.read_text().strip() or "another process"
                if self.wait_s is not None and monotonic() - begin >= self.wait_s:
                    self._file.close()
                    raise UserError(
                        f"{self.device.name} is being measured on by {holder}; "
                        f"gave up after {self.wait_s:g} s (wait_s=null waits)."
                    ) from None
                if not told:
                    self.say(f"Waiting for {self.device.name}: {holder} is measuring on it.")
                    told = True
                sleep(POLL_S)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"process {os.getpid()} ({' '.join(commit.words(sys.orig_argv[1:]))})\n")
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[str]:
        try:
            # Without O_CREAT: Linux refuses it in /tmp for a file of another user, to root as well.
            descriptor = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(PermissionError):
            os.fchmod(descriptor, 0o666)  # other users of this machine share the device
        return os.fdopen(descriptor, "r+")
