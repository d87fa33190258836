"""Detect changes of a worker's process by which a provider could falsify its own times.

No other provider runs in that process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from .. import loading
from ..machine.reaper import children

TENSOR_METHODS = (
    *("copy_", "clone", "fill_", "view", "as_strided", "contiguous", "data_ptr", "expand", "repeat"),
    *("bitwise_not_", "logical_not_", "is_floating_point", "__getitem__"),
)
CUDA_FUNCTIONS = ("Event", "CUDAGraph", "Stream", "stream", "current_stream", "synchronize", "graph")
EVENT_METHODS = ("record", "query", "elapsed_time", "synchronize", "__new__", "__init__")
GRAPH_METHODS = ("capture_begin", "capture_end", "replay", "__new__", "__init__")
"""The functions of torch that the timing code calls. All built-in functions of torch are watched as well."""


class ProcessState:
    """A snapshot of the process, with which its later states are compared."""

    def __init__(self) -> None:
        # References keep the objects alive, so that no new object takes the place of an old one.
        self._functions = [(name, held, key, _of(held, key)) for name, held, key in _functions()]
        self._threads = _threads()
        self._children = set(children(os.getpid()))

    def replaced(self) -> list[str]:
        """Return the functions and constants of the timing code that were replaced since the snapshot."""
        return sorted(name for name, held, key, was in self._functions if _of(held, key) is not was)

    def running(self) -> list[str]:
        """Return the threads and child processes that were started since the snapshot and still run."""
        threads = [name for ident, name in _threads().items() if ident not in self._threads]
        found = [f"thread {name} is running" for name in threads]
        started = set(children(os.getpid())) - self._children
        return found + ([f"{len(started)} processes are running"] if started else [])


def _threads() -> dict[int | None, str]:
    return {thread.ident: thread.name for thread in threading.enumerate()}


Holder = Mapping[str, Any] | type
"""The names of a module or class, or a class that has names by itself or from a base class."""


def _of(held: Holder, key: str) -> Any:
    """Return what has this name, or None. Not getattr: a descriptor returns another object at each access."""
    if not isinstance(held, type):
        return held.get(key)
    return next((vars(place)[key] for place in held.__mro__ if key in vars(place)), None)


def _functions() -> Iterator[tuple[str, Holder, str]]:
    """Yield the functions and constants that must not be replaced: a name, and where they are held."""
    ours = [(name, one) for name, one in sys.modules.items() if name.split(".")[0] == "kernel_pipeline"]
    for name, module in ours:
        # An installation has the kernels inside of the library.
        if not f"{name}.".startswith(f"{loading.PACKAGE}."):
            yield name, sys.modules, name
            yield from _of_module(module)
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "sleep"):
        yield f"time.{name}", vars(time), name
    for name, found in list(vars(torch).items()):
        if isinstance(found, BuiltinFunctionType):
            yield f"torch.{name}", vars(torch), name
    for name in CUDA_FUNCTIONS:
        yield f"torch.cuda.{name}", vars(torch.cuda), name
    for owner, label, names in (
        (torch.Tensor, "torch.Tensor", TENSOR_METHODS),
        (torch.cuda.Event, "torch.cuda.Event", EVENT_METHODS),
        (torch.cuda.CUDAGraph, "torch.cuda.CUDAGraph", GRAPH_METHODS),
    ):
        for name in names:
            yield f"{label}.{name}", owner, name


def _of_module(module: ModuleType) -> Iterator[tuple[str, Holder, str]]:
    for name, found in list(vars(module).items()):
        if name.isupper() or callable(found):  # a constant, a function or a class
            yield f"{module.__name__}.{name}", vars(module), name
        if isinstance(found, type) and found.__module__ == module.__name__:
            for member, value in vars(found).items():
                if callable(value):
                    yield f"{module.__name__}.{name}.{member}", vars(found), member
