"""Standard output that can't be written, as on a full disk, ends a command with one sentence.

Python itself ends in a traceback, or at its very end in a remark and the exit code 120.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import sys

from pipeline import UserError

OTHERS = (errno.EPIPE, errno.EAGAIN)
"""Errors that are no fault of the place: a reader that has seen enough, one that is slow."""


class Output(io.FileIO):
    """A file whose first failure to be written raises UserError; what is written later goes nowhere."""

    is_broken = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Write what the operating system takes of it."""
        if self.is_broken:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in OTHERS:
                raise
            self.is_broken = True
            raise UserError(
                f"can't write to the standard output: {error.strerror}. What was done is kept; make room, or "
                "send the output elsewhere, and run the command again."
            ) from error


def guard() -> None:
    """From now on standard output is such a file, up to the end of this process."""
    old = sys.stdout
    if not isinstance(old, io.TextIOWrapper) or isinstance(getattr(old.buffer, "raw", None), Output):
        return
    old.flush()
    raw = Output(old.fileno(), "wb", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), old.encoding, old.errors, line_buffering=old.line_buffering
    )
    atexit.register(_flush)


def _flush() -> None:
    """The buffer is written before Python's own end, which has no sentence for it."""
    try:
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
