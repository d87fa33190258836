"""End a command with one sentence if its standard output can't be written, as on a full disk, and without a
word if nobody reads it any more, as after ``| head``.

Python itself would print a traceback, or a remark at its very end, with exit code 120.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys

from kernel_pipeline.errors import UserError


class Output(io.FileIO):
    """A file that raises UserError at the first failed write, or SystemExit if the reader of a pipe has
    closed it, and drops later writes."""

    is_broken = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Write as many bytes as the operating system takes."""
        if self.is_broken:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            if error.errno == errno.EAGAIN:  # the reader of a pipe is slow
                raise
            self.is_broken = True
            if error.errno == errno.EPIPE:
                raise SystemExit(128 + signal.SIGPIPE) from error
            raise UserError(
                f"can't write to the standard output: {error.strerror}. Results so far are kept; make room, "
                "or send the output elsewhere, and run the command again."
            ) from error


def guard() -> None:
    """Replace standard output by an ``Output``."""
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
    """Write the buffer before Python ends, so that a failure gets an error message."""
    try:
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    except SystemExit as end:
        os._exit(int(str(end.code)))
