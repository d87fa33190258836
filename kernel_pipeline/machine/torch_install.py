"""The installed torch: its version without importing it, and what makes its calls on a CPU alike."""

from __future__ import annotations

import ctypes
import runpy
from dataclasses import dataclass
from importlib import util
from pathlib import Path


@dataclass(frozen=True)
class Torch:
    """Torch's package folder, its version, and the CUDA version that it was built with."""

    folder: Path
    version: str
    cuda: str | None


def installed_torch() -> Torch:
    """Return the facts of the installed torch without importing it, which would take seconds."""
    spec = util.find_spec("torch")
    assert spec is not None and spec.origin is not None, "torch is a dependency of this package"
    folder = Path(spec.origin).parent
    version = runpy.run_path(str(folder / "version.py"))
    return Torch(folder, version["__version__"], version["cuda"])


VECTOR_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log"),
    *("log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
"""The functions that ATen passes to oneMKL's vector mathematics (aten/src/ATen/cpu/vml.h)."""


def resolve_vector_math() -> None:
    """Call each function once on one element, in this thread only.

    oneMKL chooses a function's code at its first call. If several threads make the first call at once, one of
    them may run low-accuracy code for its part (https://github.com/pytorch/pytorch/issues/188792). In 17 of
    8,000 processes whose first call was ``torch.exp`` on 4096 x 64 elements with 8 threads, a softmax was off
    by up to 2e-4; in 8,000 processes that called this function first, none was (torch 2.13.0, a Xeon with
    2 cores).
    """
    import torch

    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for name in VECTOR_FUNCTIONS:
            getattr(torch, name)(one)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's ``mallopt`` (malloc.h)."""


def keep_freed_memory() -> None:
    """Keep the memory that this process frees, so that its next tensor of a size needs no new pages.

    By default glibc returns large free blocks to Linux or keeps them, as the process's earlier allocations
    have it. One provider in one process therefore takes times that differ by a factor: torch's rmsnorm of
    1024 x 1024 float32 took 0.77 ms when it was timed, and 2.7 ms with 2016 page faults a call when it was
    audited (two cores of a Xeon). Does nothing if the C library has no ``mallopt``.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, -1)  # never
        mallopt(M_MMAP_MAX, 0)
