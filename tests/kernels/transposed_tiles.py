"""Headers of plain C++ that CUDA kernels share, compiled without CUDA."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from pipeline.machine.compilers import find_cxx


def compiled(source: str, include: Path, folder: Path) -> ctypes.CDLL:
    """The library of a source that includes headers of a folder."""
    (folder / "source.cpp").write_text(source)
    flags = ["-std=c++17", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    subprocess.run([find_cxx().path, *flags, "source.cpp", "-o", "library.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "library.so"))
