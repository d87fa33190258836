"""The measuring code as a library.

``bench``, ``check``, ``compare`` and ``bench_grid`` measure and verify any function of tensors; ``contract``
declares kernels; ``ops`` calls the measured kernels of this repository. The library needs torch, Triton,
msgspec and nvidia-ml-py, and does not import ``kernels/`` or ``pipeline/``. Importing the package does not
import torch: each name in ``__all__`` is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import BenchError
    from .bench_result import BenchResult
    from .benchmark import bench
    from .checking import CheckResult, check
    from .comparison import BenchComparison, BenchGrid, bench_grid, compare

__all__ = [
    "BenchComparison",
    "BenchError",
    "BenchGrid",
    "BenchResult",
    "CheckResult",
    "bench",
    "bench_grid",
    "check",
    "compare",
]

_HOME = {
    "BenchError": "arguments",
    "BenchResult": "bench_result",
    "bench": "benchmark",
    "CheckResult": "checking",
    "check": "checking",
    "BenchComparison": "comparison",
    "BenchGrid": "comparison",
    "bench_grid": "comparison",
    "compare": "comparison",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
