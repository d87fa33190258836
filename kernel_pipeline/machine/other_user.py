"""Make a process of root another user's, who can't read the files that only root can read.

The process keeps root until its namespaces are set up. Python, the caches and the folders that it reads have
to be open to all users, which ``possible`` finds out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .reaper import PR_SET_PDEATHSIG

NOBODY = 65534
"""The user and group that own nothing."""

PR_SET_DUMPABLE = 4


def possible(read: Iterable[Path]) -> int | None:
    """Return the user that this process of root can become; None if this is not root's, or if the user could
    not read Python or the folders ``read``."""
    python = (Path(one) for one in (sys.prefix, sys.base_prefix, *sys.path))
    needed = [*read, *(one for one in python if one.is_dir())]
    return NOBODY if os.geteuid() == 0 and all(map(_is_open, needed)) else None


def mapped(user: int, unshare: Callable[[], None]) -> None:
    """Enter a user namespace by ``unshare``, and map root and the user into it. Raises OSError if Linux
    refuses."""
    own, (waits, goes) = os.getpid(), os.pipe()
    mapper = os.fork()  # only a process outside of the namespace may map a second user
    if mapper == 0:
        os.close(goes)
        with suppress(OSError):
            if os.read(waits, 1):
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{own}", name).write_text(f"0 0 1\n{user} {user} 1\n")
                os._exit(0)
        os._exit(1)
    os.close(waits)
    try:
        unshare()
        os.write(goes, b"1")
    finally:
        os.close(goes)
        _, status = os.waitpid(mapper, 0)
    if status:
        raise OSError(errno.EPERM, "Linux refuses to map another user")


def lend(folder: Path, user: int, below: Path) -> None:
    """Give a folder, the folders in it, and those between it and ``below`` to a user.

    Only empty files in them, such as locks, become the user's: in an overlay, to give a file is to copy it.
    The user can replace the others, and read those that all can read.
    """
    for parent in (one for one in folder.parents if one.is_relative_to(below)):
        os.chown(parent, user, user)
    for place, _, names in os.walk(folder):
        os.chown(place, user, user)
        for path in (Path(place, name) for name in names):
            if path.lstat().st_size == 0:
                os.chown(path, user, user, follow_symlinks=False)


def become(user: int) -> None:
    """Become the user for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # Without these, it could not read its own files in /proc, and would outlive its parent.
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_DUMPABLE, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _is_open(folder: Path) -> bool:
    """Whether every user can read a folder."""
    places = (folder.resolve(), *folder.resolve().parents)
    return bool(places[0].stat().st_mode & 0o4) and all(one.stat().st_mode & 0o1 for one in places)
