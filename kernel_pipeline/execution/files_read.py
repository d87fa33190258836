"""Record the files that a kernel's code opens in this process, by Python's audit events (PEP 578)."""

from __future__ import annotations

import getpass
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from .. import loading
from ..machine.fingerprint import package_folders
from ..toolchain import inductor

SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib", "/opt/", "/proc/", "/run/", "/sbin/", "/sys/", "/usr/")
"""Folders of the machine's own files."""

OURS = str(Path(__file__).parent) + os.sep
KERNELS = (str(loading.ROOT) + os.sep, str(loading.LIBRARY) + os.sep)


class FilesRead:
    """The paths that a kernel's code, or a library that it called, has read or loaded in this process.

    The paths do not include installed packages, the machine's own files, caches, files changed since
    recording began, and Python modules of ``kernels/`` and ``kernel_pipeline/``: a key covers the modules
    that a provider reaches. A process has one instance, made by ``listening``, because an audit hook can't be
    removed.
    """

    def __init__(self) -> None:
        self._readers: dict[str, set[str]] = {}
        self._began_s = time.time()
        self._libraries = tuple(f"{path}{os.sep}" for path in package_folders())
        self._others = (*SYSTEM, *self._libraries, OURS, *(f"{path}{os.sep}" for path in _caches()))
        sys.addaudithook(self._hear)

    def outside(self, folder: Path) -> tuple[str, ...]:
        """Return the files outside of a kernel's folder that its code, or a library for it, has read so far.

        They are in the order of the first reading. Files in the folder are left out, because the key covers
        all that its code may open there. A ``.pyc`` file is listed as its source.
        """
        here = tuple(f"{place}{os.sep}" for place in (folder, folder.resolve()))
        return tuple(
            path
            for path, readers in self._readers.items()
            if not path.startswith(here) and any(reader.startswith(here) for reader in readers)
        )

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "ctypes.dlopen"):
            with suppress(Exception):  # open() itself raises the error of a wrong path
                if event != "open" or _reads(*arguments[1:]):
                    self._note(os.fsdecode(arguments[0]))
        elif event == "import" and arguments[1]:
            self._note(arguments[1])

    def _note(self, path: str) -> None:
        if path.startswith(self._others):  # nearly all files that an import opens
            return
        found = os.path.realpath(path)
        if found.endswith(".pyc"):
            found = importlib.util.source_from_cache(found)
        if found.startswith(self._others) or (found.startswith(KERNELS) and found.endswith(".py")):
            return
        if not Path(found).is_file() or Path(found).stat().st_ctime >= self._began_s:
            return
        files = [frame.f_code.co_filename for frame in _frames(sys._getframe(2))]
        own = [name for name in files if not name.startswith(("<", *SYSTEM, *self._libraries))]
        # A file that the measuring code opens belongs to no kernel.
        if own and not own[0].startswith(OURS):
            self._readers.setdefault(found, set()).update(own)


@cache
def listening() -> FilesRead:
    """Return the process's instance. It records from the first call on."""
    return FilesRead()


def _caches() -> Iterator[str]:
    """Yield the folders in which compilers and packages keep compiled kernels."""
    with suppress(OSError, KeyError):  # the user has no name
        of_user = Path(tempfile.gettempdir(), getpass.getuser())
        for variable in inductor.PACKAGE_CACHES:
            usual = str(of_user / variable.lower().removesuffix("_dir"))
            yield os.path.realpath(os.environ.get(variable) or usual)
    for variable, usual in (
        ("XDG_CACHE_HOME", "~/.cache"),
        (inductor.TRITON_CACHE, "~/.triton"),
        (inductor.CACHE, "~/.cache"),
    ):
        yield os.path.realpath(os.environ.get(variable) or Path(usual).expanduser())


def _frames(innermost: FrameType | None) -> Iterator[FrameType]:
    while innermost is not None:
        yield innermost
        innermost = innermost.f_back


def _reads(mode: str | None, flags: int) -> bool:
    """Whether a file is opened for reading: by the mode of Python's ``open``, else by the flags."""
    if mode is not None:
        return "r" in mode or "+" in mode
    return flags & os.O_ACCMODE != os.O_WRONLY
