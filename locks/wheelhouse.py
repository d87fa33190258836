"""Download the locked packages for a host without a package index. ``make wheelhouse`` runs this script.

    python locks/wheelhouse.py wheelhouse --python 3.12 --without-torch

Fills a folder with a file for each pin of the locks that the chosen Python on x86-64 Linux needs. Hashes are
checked here, and again on the host where ``make setup WHEELHOUSE=FOLDER`` installs the files. A package that
is published as source only is built on that host.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

LOCKS = Path(__file__).resolve().parent

GLIBC = range(39, 16, -1)
"""The minor versions of glibc 2 that a wheel may require: up to the newest one that current hosts have."""

PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC),
    *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)),
    # Some wheels have only the tag of their oldest glibc.
    "manylinux_2_12_x86_64",
    "manylinux_2_5_x86_64",
    "linux_x86_64",
]

VERSIONS = ("3.11", "3.12", "3.13")

Pins = Mapping[str, str]
"""The pins of a lock by ``NAME==VERSION``. A value is the line for pip, with hashes."""


class DownloadError(Exception):
    """A package can't be downloaded. The text gives the reason."""


def gather(folder: Path, python: str, with_torch: bool) -> int:
    """Fill the folder, and remove packages that no lock names. Returns the number of packages.

    Raises DownloadError if a package is not available or has another hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted: dict[str, str] = {}
    for name in ("runtime", "dev", "nvcc", "numba"):
        wanted |= _lock(name, python)
    if with_torch:
        wanted |= _download_torch(folder, python)
    _download(folder, wanted, python)
    for path in folder.iterdir():
        pin = _pin_of(path)
        if pin is not None and pin not in wanted:
            path.unlink()
    return len(wanted)


def pins(lock: str, python: str) -> dict[str, str]:
    """Return the pins of a lock that the Python version needs on x86-64 Linux, without environment markers.

    pip would evaluate the markers for the Python that runs it, not for the target's.
    """
    target = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    found = {}
    for entry in filter(None, re.split(r"\n(?=\S)", lock.strip())):
        words, *hashes = entry.split(" \\\n")
        requirement = Requirement(words)
        if requirement.marker is None or requirement.marker.evaluate(target):
            pin = f"{requirement.name}{requirement.specifier}"
            found[pin] = " ".join([pin, *map(str.strip, hashes)])
    return found


def _lock(name: str, python: str) -> dict[str, str]:
    return pins((LOCKS / f"{name}.lock").read_text(), python)


def _download_torch(folder: Path, python: str) -> Pins:
    """Download torch's CPU build if one of pip's indexes has it, else the public build with CUDA's libraries.
    Returns the pins of the downloaded lock."""
    cpu = _lock("torch-cpu", python) if (LOCKS / "torch-cpu.lock").exists() else {}
    try:
        if cpu:
            _download(folder, cpu, python)
            return cpu
    except NotInIndexError as error:
        if not error.pin.startswith("torch=="):
            raise
    cuda = _lock("torch-cuda", python)
    _download(folder, cuda, python)
    return cuda


class NotInIndexError(DownloadError):
    """None of pip's indexes has a package."""

    def __init__(self, pin: str) -> None:
        super().__init__(f"none of pip's indexes has {pin}; `pip config list` lists them")
        self.pin = pin


def _download(folder: Path, wanted: Pins, python: str) -> None:
    """Download the file of each pin to the folder. Raises DownloadError if one is not available."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ("--implementation=cp", f"--python-version={python}", *platforms)
    checks = ("--require-hashes", "--no-deps", "--no-build-isolation", "--use-pep517")
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as lock:
        lock.write("\n".join(wanted.values()) + "\n")
        lock.flush()
        where = ("--dest", str(folder), "--requirement", lock.name)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "--quiet", "download", *checks, *target, *where],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return
    absent = re.search(r"No matching distribution found for (\S+)", done.stderr)
    if absent:
        raise NotInIndexError(absent[1])
    changed = re.search(r"^    (\S+) from .*:$", done.stderr, re.MULTILINE)
    if "DO NOT MATCH THE HASHES" in done.stderr and changed:
        raise DownloadError(f"{changed[1]} is not the file that the lock names: its hash differs")
    raise DownloadError(
        f"pip can't download the packages: {(done.stderr.strip() or 'it says nothing').splitlines()[-1]}"
    )


def _pin_of(path: Path) -> str | None:
    """Return the pin of a package's file, or None for any other file."""
    try:
        if path.suffix == ".whl":
            name, version, *_ = parse_wheel_filename(path.name)
        else:
            name, version = parse_sdist_filename(path.name)
    except (InvalidSdistFilename, ValueError):
        return None
    return f"{canonicalize_name(name)}=={version}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", choices=VERSIONS, default=".".join(platform.python_version_tuple()[:2]))
    parser.add_argument(
        "--without-torch", action="store_true", help="leave out torch, for a host that has it"
    )
    arguments = parser.parse_args()
    try:
        count = gather(arguments.folder, arguments.python, not arguments.without_torch)
    except DownloadError as error:
        sys.exit(f"error: {error}")
    size = sum(path.stat().st_size for path in arguments.folder.iterdir()) / 1e6
    print(f"{arguments.folder} holds {count} packages for Python {arguments.python}, {size:.0f} MB.")


if __name__ == "__main__":
    main()
