"""Files that a crash, a full disk or a second process finds whole."""

from __future__ import annotations

import fcntl
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from .errors import UserError

CHECKOUT = Path(__file__).resolve().parents[1]

WORK = (
    CHECKOUT
    if (CHECKOUT / "kernels").is_dir()
    else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel_pipeline"
)
"""Where builds and notes go: the checkout, or a cache where the library is installed from a wheel."""

LOCAL = WORK / "local"
"""Files of this checkout on this host alone; git ignores them."""

WAIT_S = 60.0
"""Many times what a command holds a ledger for."""

POLL_S = 0.02
FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a reader or a crash sees the old or the new, never a part; an
    unchanged one is not touched.

    Raises UserError when it can't be written; the old file stays.
    """
    if path.exists() and path.read_bytes() == content:
        return
    # Containers that share the folder count their processes each from 1.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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


def content(path: Path) -> bytes:
    """What a file holds; nothing if there is none. Raises UserError for one that can't be read."""
    try:
        # Opened, not asked for first: opening is what makes an NFS client ask its server.
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}.") from error


def append(path: Path, line: bytes) -> None:
    """Add a line, which ends with a newline, and make sure that it is on the disk. A last line that a crash
    left torn does not swallow it.

    Raises UserError when the disk is full or the file can't be written; what was appended before stays.
    """
    try:
        with locked(path), path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end > 0:
                file.seek(end - 1)
            torn = end > 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise not_appended(path, error) from error


def not_appended(path: Path, error: OSError) -> UserError:
    """That nothing more can be added to a file that is appended to."""
    return UserError(
        f"can't write {path}: {error.strerror}. What was measured before is kept; "
        "make room and run the same command again to go on from here."
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file for this process alone, by a lock file beside it that the operating system lets go of when
    the process ends in any way. Waits for another process that holds it, ``WAIT_S`` at most: any account that
    may read the lock file can hold it, and for ever.

    Raises UserError when the lock file can't be made, opened or locked; nothing was written then.
    """
    beside = path.with_name(f".{path.name}.lock")
    try:
        descriptor = _lock(beside)
    except TimeoutError as error:
        raise UserError(
            f"can't write {path}: {error} holds its lock {beside.name} since {WAIT_S:g} s. Nothing was "
            "written; end that process, or wait for it, and run the command again."
        ) from error
    except OSError as error:
        raise UserError(
            f"can't write {path}: its lock {beside.name} can't be taken: {error.strerror}. Nothing was "
            "written; the file must lie in a folder that you may write to, on a file system that has locks."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int) -> None:
    """Take the lock of an open file, byte-range: what every NFS client passes on to its server. Raises
    TimeoutError with who holds it."""
    deadline = monotonic() + WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, by the system
            if monotonic() > deadline:
                raise TimeoutError(_holder(descriptor)) from None
            sleep(POLL_S)


def _holder(descriptor: int) -> str:
    """The process that holds a lock on an open file, as fcntl(2) knows it."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    *_, process = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return f"process {process}" if process > 0 else "another process"


def _lock(beside: Path) -> int:
    """The descriptor of a lock file that this process holds until it is closed."""
    while True:
        beside.parent.mkdir(parents=True, exist_ok=True)
        # A link that someone else put there is not followed.
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        try:
            _wait(descriptor)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), beside.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the folder was removed meanwhile: this one is nobody else's lock
