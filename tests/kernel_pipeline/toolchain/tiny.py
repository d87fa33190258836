"""A project with one kernel that compiles quickly, and the CUDA code in a library."""

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.fingerprint import find_nvcc
from kernel_pipeline.toolchain.extension import Place
from tests.processes import completed

FILES = {
    "include/value.h": "#define VALUE 1\n",
    "tiny/cpp.cpp": '#include "../include/value.h"\nextern "C" __attribute__((visibility("default")))\n'
    "int value() { return VALUE; }\n",
    "tiny/cuda.cu": '#include "../include/value.h"\nnamespace tiny {\n'
    "template <typename T> __global__ void add(T* x) { x[threadIdx.x] += VALUE; }\n"
    "template __global__ void add<float>(float*);\n}\n",
}


CPP, CUDA = "cpp.cpp", "cuda.cu"


def make(folder: Path) -> Place:
    """Write the project into a folder. Its name has a space, which the shell and ninja commands must
    quote."""
    root = folder / "a project"
    for name, text in FILES.items():
        path = root / "kernels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place(root)


def place(root: Path, name: str = "tiny") -> Place:
    """Return the place of a kernel in the project."""
    shared = root / "kernels"
    return Place(name, shared / name, root, root / "build" / name, shared)


def value(library: Path) -> int:
    """Return the result of the C++ library in a new process, because this process may have loaded an
    earlier build."""
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).value())"
    command = [sys.executable, "-c", program, str(library)]
    return int(completed(command, check=True).stdout)


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and content of every file in a folder."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def touch_all(folder: Path) -> None:
    """Give all files below a folder new times in an arbitrary order."""
    for path in folder.rglob("*"):
        seconds = 1_000_000_000 + hash(path.name) % 1_000_000
        os.utime(path, (seconds, seconds))


def cuda_code(library: Path) -> list[tuple[str, int]]:
    """Return the entries of a library's fat binary: ("ptx" or "elf", architecture)."""
    return list(_entries(library.read_bytes()))


def _entries(data: bytes) -> Iterator[tuple[str, int]]:
    magic = struct.pack("<I", 0xBA55ED50)
    at = data.find(magic)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        entry, at = at + header, at + header + size
        while entry < at:
            kind, _, length, payload = struct.unpack_from("<HHIQ", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            yield {1: "ptx", 2: "elf"}[kind], architecture
            entry += length + payload
        at = data.find(magic, at)


def has_nvcc() -> bool:
    """Return whether nvcc is available."""
    try:
        find_nvcc()
    except UserError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="needs nvcc: pip install '.[nvcc]'")
