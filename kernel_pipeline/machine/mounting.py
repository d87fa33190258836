"""Mount file systems by mount(2), and writable copies of folders that are kept in memory."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Mount a file system, or with ``BIND`` a folder or file. Raises OSError if Linux refuses."""
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    done = libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    checked(done, f"to mount {kind or 'a folder'} on {target}")


def checked(answer: int, what: str) -> None:
    """Raise OSError for the answer of a refused call of libc."""
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Linux refuses {what}: {os.strerror(error)}")


def mounted() -> list[Path]:
    """Return the places of all mounts of this process, by proc(5)."""
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), place)) for place in places]


def make_writable(folder: Path, scratch: Path, mounts: Sequence[Path]) -> list[Path]:
    """Mount a writable copy of a folder in its place, and keep the changes in ``scratch``. Return the folders
    that can be written to.

    Linux makes no overlay of a folder with other mounts below, because an overlay would uncover what they
    hide. The copy of such a folder has a writable copy of each folder in it. The ``mounts`` and the files
    beside these folders can only be read.
    """
    upper, work = (Path(tempfile.mkdtemp(dir=scratch)) for _ in range(2))
    upper.chmod(folder.stat().st_mode & 0o7777)
    if not any(folder in place.parents for place in mounts):
        layers = f"lowerdir={_escaped(folder)},upperdir={upper},workdir={work},userxattr"
        mount("overlay", str(folder), "overlay", NOSUID | NODEV, layers)
        return [folder]
    folders = []
    for entry in folder.iterdir():
        place = upper / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        elif entry.is_dir() or entry.is_file():
            place.mkdir() if entry.is_dir() else place.touch()
            mount(str(entry), str(place), None, BIND | REC)
            folders += [entry] if entry.is_dir() and entry not in mounts else []
    mount(str(upper), str(folder), None, BIND | REC)
    return [folder, *(each for one in folders for each in make_writable(one, scratch, mounts))]


def _escaped(path: Path) -> str:
    return "".join(f"\\{one}" if one in "\\:," else one for one in str(path))
