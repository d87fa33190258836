"""The torch that is installed: what it is, without importing it; and its vector mathematics on a CPU,
made fit for several threads."""

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
    version = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, version["__version__"], version["cuda"])


VECTOR_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log"),
    *("log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
"""What ATen hands to oneMKL's vector mathematics (aten/src/ATen/cpu/vml.h)."""


def resolve_vector_math() -> None:
    """Call each function once on one element, in this thread alone.

    oneMKL chooses the code of a function when it is first called. Where several threads come first, one of
    them may run code of low accuracy for its part of that call (https://github.com/pytorch/pytorch/issues/188792):
    17 of 8,000 processes whose first call was ``torch.exp`` of 4096 x 64 elements by 8 threads gave a softmax
    that was off by up to 2e-4, and of 8,000 that had called this, none (torch 2.13.0, a Xeon of 2 cores).
    """
    import torch

    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for name in VECTOR_FUNCTIONS:
            getattr(torch, name)(one)
