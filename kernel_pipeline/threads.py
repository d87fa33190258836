"""What kernels share whose code is that of one thread: how many threads a block has, and what Numba takes.
Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contract import Gpu, one_of

NUMBA_DTYPES = ("float32", "float16")
"""The dtypes whose tensors Numba takes."""


@dataclass(frozen=True, kw_only=True)
class Threads:
    """How many threads a block is launched with."""

    threads: int = one_of(32, 64, 128, 256, 512, 1024, default=128, unit="t")


def numba_fits(problem: Any, parameters: object, gpu: Gpu | None) -> str | None:
    """Why Numba can't take a problem's tensors or do its arithmetic, or None when it can."""
    del parameters, gpu
    if getattr(problem, "arithmetic", "ieee") != "ieee":
        return f"{problem.arithmetic} is done by tensor cores, which Numba does not reach"
    if problem.dtype not in NUMBA_DTYPES:
        return f"Numba takes {' and '.join(NUMBA_DTYPES)}, no {problem.dtype}"
    return None
