"""Parameters and limits of kernels that are written per thread (SIMT): threads per block, Numba's dtypes.
The module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contract import Gpu, one_of

NUMBA_DTYPES = ("float32", "float16")
"""The dtypes that Numba supports."""


@dataclass(frozen=True, kw_only=True)
class Threads:
    """The number of threads in a block."""

    threads: int = one_of(32, 64, 128, 256, 512, 1024, default=128, unit="t")


def numba_fits(problem: Any, parameters: object, gpu: Gpu | None) -> str | None:
    """Return the reason why Numba does not support a problem's dtype or arithmetic, or None."""
    del parameters, gpu
    if getattr(problem, "arithmetic", "ieee") != "ieee":
        return f"{problem.arithmetic} needs tensor cores, which Numba does not support"
    if problem.dtype not in NUMBA_DTYPES:
        return f"Numba takes {' and '.join(NUMBA_DTYPES)}, no {problem.dtype}"
    return None
