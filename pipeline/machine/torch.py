"""The torch that is installed, without importing it."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from importlib import util
from pathlib import Path


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
