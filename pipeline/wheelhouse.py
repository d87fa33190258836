"""Gather the locked packages as wheels, for a host that reaches no package index. ``make wheelhouse``.

``python -m pipeline.wheelhouse FOLDER [--python 3.12] [--without-torch]`` fills a folder with a wheel for
each pin of constraints.txt that this Python on x86-64 Linux needs, and with ``constraints.txt``, the pins it
holds; ``make setup WHEELHOUSE=FOLDER`` installs from it. What is published as source alone is built here.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from pipeline import ROOT, UserError
from pipeline.command.run import fail

GLIBC = range(39, 16, -1)
"""Minor versions of the glibc 2 that a wheel may ask for: a host of today has any of these."""

PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC),
    *(f"manylinux{year}_x86_64" for year in (2014, 2010, 1)),
    # Some wheels name the tag of their oldest glibc alone.
    "manylinux_2_12_x86_64",
    "manylinux_2_5_x86_64",
    "linux_x86_64",
]

TORCH = re.compile(
    r"(torch|triton|cuda-(?!toolkit).*|nvidia-(?!ml-py|cuda-(nvcc|crt|cccl|runtime)|nvvm).*)=="
)
"""Torch and what it brings, Triton and the CUDA libraries; not the compiler, which such a host may lack."""

VERSIONS = ("3.11", "3.12", "3.13")


def gather(folder: Path, python: str, with_torch: bool) -> int:
    """Fill the folder; returns how many packages it then holds.

    Raises UserError when a package is neither there as a wheel nor can be built.
    """
    wanted = pins((ROOT / "constraints.txt").read_text().splitlines(), python, with_torch)
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        if _pin_of(old) not in {_normal(pin) for pin in wanted}:
            old.unlink()
    as_wheels = list(wanted)
    while missing := _download(folder, as_wheels, python):
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), missing)
        as_wheels.remove(missing)
    (folder / "constraints.txt").write_text("\n".join(wanted) + "\n")
    return len(wanted)


def pins(lines: Sequence[str], python: str, with_torch: bool = True) -> list[str]:
    """The pins of a lock, ``NAME==VERSION``, that Python VERSION on x86-64 Linux needs."""
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
    found = []
    for requirement in map(Requirement, filter(None, lines)):
        pin = f"{requirement.name}{requirement.specifier}"
        if (requirement.marker is None or requirement.marker.evaluate(target)) and (
            with_torch or not TORCH.match(pin)
        ):
            found.append(pin)
    return found


def _download(folder: Path, wanted: Sequence[str], python: str) -> str | None:
    """Download wheels; the first pin that has none, or None when all are there."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    target = ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms)
    said = _pip("download", "--no-deps", *target, "--dest", str(folder), *wanted, ok=False)
    if said is None:
        return None
    absent = re.search(r"No matching distribution found for (\S+)", said)
    if absent is None or absent[1] not in wanted:
        raise UserError(
            f"pip can't download the wheels: {said.splitlines()[-1] if said else 'it says nothing'}"
        )
    return absent[1]


def _pip(*words: str, ok: bool = True) -> str | None:
    """Run pip; None when it succeeds, else what it said. Raises UserError unless it may fail."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", *words], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 0:
        return None
    if ok:
        raise UserError(f"no wheel of {words[-1]} can be made here: {done.stderr.strip().splitlines()[-1]}")
    return done.stderr.strip()


def _normal(pin: str) -> str:
    name, _, version = pin.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def _pin_of(wheel: Path) -> str:
    """The pin that a wheel fulfils; a local version such as ``+cpu`` fulfils the public one."""
    name, version = wheel.name.split("-")[:2]
    return _normal(f"{name}=={version.partition('+')[0]}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.wheelhouse", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", choices=VERSIONS, default=".".join(platform.python_version_tuple()[:2]))
    parser.add_argument("--without-torch", action="store_true", help="for a host that has it")
    arguments = parser.parse_args()
    try:
        count = gather(arguments.folder, arguments.python, not arguments.without_torch)
    except UserError as error:
        fail(str(error))
    size = sum(path.stat().st_size for path in arguments.folder.iterdir()) / 1e6
    print(f"{arguments.folder} holds {count} packages for Python {arguments.python}, {size:.0f} MB.")


if __name__ == "__main__":
    main()
