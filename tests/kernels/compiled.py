"""Compile C++ of tests, with headers and kernels of CUDA in it, without CUDA."""

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from kernel_pipeline import loading
from kernel_pipeline.machine.fingerprint import find_cxx
from tests.processes import completed

EMULATED = Path(__file__).parent / "emulated"
NO_PROGRAMS = shutil.ignore_patterns("*-*")


def library(source: str, include: Path, folder: Path) -> ctypes.CDLL:
    """The library of a source that includes headers of a folder."""
    (folder / "source.cpp").write_text(source)
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    subprocess.run([find_cxx().path, *flags, "source.cpp", "-o", "library.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "library.so"))


def program(source: Path, **macros: object) -> Path:
    """The program of a source with these macros, compiled once, beside it."""
    values = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in macros.items()
    }
    of_macros = hashlib.sha256(repr(values).encode()).hexdigest()[:16]
    path = source.with_name(f"{source.stem}-{of_macros}")
    if not path.exists():
        defined = [f"-D{name}={value}" for name, value in values.items()]
        # A compiler's checks take a fiber's jump to another for a mistake.
        flags = ["-std=c++17", "-O1", "-U_FORTIFY_SOURCE", *defined]
        subprocess.run([find_cxx().path, *flags, source.name, "-o", path.name], cwd=path.parent, check=True)
    return path


def answer(
    path: Path, given: Iterable[torch.Tensor], arguments: Iterable[object], timeout_s: float = 120.0
) -> torch.Tensor:
    """Return a program's output for tensors of 16 bits, as a vector of the first one's dtype. A program
    that finds a fault prints it and ends with another code than 0."""
    tensors = list(given)
    read, written = path.with_name("given"), path.with_name("made")
    read.write_bytes(b"".join(x.contiguous().view(torch.int16).numpy().tobytes() for x in tensors))
    command = [*map(str, (path, read, written, *arguments))]
    done = completed(command, timeout=timeout_s)
    assert done.returncode == 0, done.stdout
    return torch.frombuffer(bytearray(written.read_bytes()), dtype=tensors[0].dtype)


Names = Mapping[str, Iterable[str]]


def emulated(folder: Path, copied: Names, stood_in: Names) -> Path:
    """Fill a folder with a tree in which kernels' includes find the emulated multiprocessors. ``copied`` are
    files by their folder below ``kernels/``; for those of ``stood_in`` stands an emulator's header, by its
    name. Programs and emulators are in ``run``."""
    shutil.copytree(EMULATED, folder / "run")
    for name, files in copied.items():
        (folder / name).mkdir()
        for file in files:
            shutil.copy(loading.ROOT / name / file, folder / name)
    for header, others in stood_in.items():
        for other in others:
            (folder / other).parent.mkdir(exist_ok=True)
            (folder / other).write_text(f'#include "../run/{header}"\n')
    return folder


def spoilt(tree: Path, folder: Path, part: str, changes: Mapping[str, str]) -> None:
    """Copy a tree to a folder, and replace texts there, each in the only file of ``part`` that has it."""
    shutil.copytree(tree, folder, dirs_exist_ok=True, ignore=NO_PROGRAMS)
    for before, after in changes.items():
        (file,) = (one for one in (folder / part).iterdir() if before in one.read_text())
        file.write_text(file.read_text().replace(before, after))
