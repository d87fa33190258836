"""What is measured: a folder a kernel, found by its folder alone."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.contract import Kernel

ROOT = Path(__file__).parent


def names() -> list[str]:
    """Every kernel, by the name of its folder, without importing any."""
    return sorted(folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").is_file())


def load(name: str) -> Kernel:
    """The kernel of that name.

    Raises KeyError when there is no such folder. With ``TRITON_INTERPRET=1`` in the environment
    before the first load, Triton providers run under the interpreter.
    """
    if name not in names():
        raise KeyError(name)
    kernel: Kernel = importlib.import_module(f"kernels.{name}").kernel
    return kernel
