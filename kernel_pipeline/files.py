"""Write and lock files so that a crash, a full disk or a second process leaves no partial content."""

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


def project() -> Path | None:
    """Return the root of the project at hand: the nearest folder, from the working folder upward, that
    ``kernel-pipeline new`` made; else the checkout that holds this package. None in an installation without
    a project."""
    with suppress(OSError):  # the working folder was removed, or can't be read
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / "conf" / "sweep.yaml").is_file() and (folder / "params.yaml").is_file():
                # Another checkout runs its own code.
                if not (folder / "kernel_pipeline").is_dir():
                    return folder
                break
    return CHECKOUT if (CHECKOUT / "kernels").is_dir() else None


PROJECT = project()

WORK = PROJECT or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel_pipeline"
"""The folder for builds and local files: the project, or the user's cache if there is no project."""

LOCAL = WORK / "local"
"""The folder for files that concern only this project on this host; git ignores it."""

WAIT_S = 60.0
"""The longest wait for a lock, in seconds; commands hold a ledger's lock far shorter."""

POLL_S = 0.02
FLOCK = "hhqqi4x"
"""The format of ``struct flock`` on 64-bit Linux, for the module ``struct``."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically, so that a reader or a crash sees either the old or the new content. A file
    with equal content is not touched.

    Raises UserError if the file can't be written; the old file stays.
    """
    if path.exists() and path.read_bytes() == content:
        return
    # A process id would not be unique: containers that share the folder have their own process ids.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror}. The file is unchanged.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def content(path: Path) -> bytes:
    """Return a file's content; empty if there is no file. Raises UserError if it can't be read."""
    try:
        # Do not test for existence first: only opening makes an NFS client ask its server.
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}.") from error


def append(path: Path, line: bytes) -> None:
    """Append a line, which must end with a newline, and sync it to the disk. If a crash left a torn last
    line, first end that line.

    Raises UserError if the disk is full or the file can't be written; earlier lines stay.
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
    """Return the error for a line that could not be appended to a file."""
    return UserError(
        f"can't write {path}: {error.strerror}. Earlier measurements are kept; "
        "make room and run the same command again, which continues from here."
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file for this process by a lock file beside it. The operating system releases the lock when the
    process ends in any way. Wait at most ``WAIT_S`` for another holder, because any account that can read the
    lock file could hold the lock forever.

    Raises UserError if the lock file can't be created, opened or locked.
    """
    beside = path.with_name(f".{path.name}.lock")
    try:
        descriptor = _lock(beside)
    except TimeoutError as error:
        raise UserError(
            f"can't write {path}: {error} has held its lock {beside.name} for {WAIT_S:g} s. Nothing was "
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
    """Lock an open file by a byte-range lock, which every NFS client passes on to its server. Raises
    TimeoutError with the holder."""
    deadline = monotonic() + WAIT_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, depending on the system
            if monotonic() > deadline:
                raise TimeoutError(_holder(descriptor)) from None
            sleep(POLL_S)


def _holder(descriptor: int) -> str:
    """Return the process that holds a lock on an open file, according to fcntl(2)."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    *_, process = struct.unpack(FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return f"process {process}" if process > 0 else "another process"


def _lock(beside: Path) -> int:
    """Lock a lock file and return its descriptor; closing the descriptor releases the lock."""
    while True:
        beside.parent.mkdir(parents=True, exist_ok=True)
        # O_NOFOLLOW: another account may have put a link there.
        descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
        try:
            _wait(descriptor)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), beside.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the lock file was removed meanwhile, so others lock a new one
