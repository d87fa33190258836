"""The torch that is installed, without importing it; and how it is imported with less ado."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


@dataclass(frozen=True)
class Torch:
    """Its package's folder, its version, the CUDA version that it was built for."""

    folder: Path
    version: str
    cuda: str | None


def installed_torch() -> Torch:
    """What ``torch`` would say of itself, without the seconds that its import takes."""
    spec = util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is a dependency of this package"
    folder = Path(spec.origin).parent
    told = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, told["__version__"], told["cuda"])


@contextmanager
def quick_import() -> Iterator[None]:
    """For the import of torch, which looks up the module of each line that registers an operator. ``inspect``
    finds it by the files of all modules, whose every folder it asks the file system about; a frame knows it.
    """
    found_by_file = inspect.getmodule

    def found(object: Any, _filename: str | None = None) -> ModuleType | None:
        if isinstance(object, FrameType):
            return sys.modules.get(object.f_globals.get("__name__", ""))
        return found_by_file(object, _filename)

    inspect.getmodule = found
    try:
        yield
    finally:
        inspect.getmodule = found_by_file
