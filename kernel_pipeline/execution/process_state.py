"""Detect changes of a worker's process by which a provider could falsify its own times.

No other provider runs in that process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
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
        self._functions = {name: id(found) for name, found in _functions()}
        # References keep the objects alive, so that no new object gets the id of an old one.
        self._held = [found for _, found in _functions()]
        self._threads = _threads()
        self._children = set(children(os.getpid()))

    def replaced(self) -> list[str]:
        """Return the functions and constants of the timing code that were replaced since the snapshot."""
        now = {name: id(found) for name, found in _functions()}
        return sorted(name for name, was in self._functions.items() if now.get(name) != was)

    def running(self) -> list[str]:
        """Return the threads and child processes that were started since the snapshot and still run."""
        threads = [name for ident, name in _threads().items() if ident not in self._threads]
        found = [f"thread {name} is running" for name in threads]
        started = set(children(os.getpid())) - self._children
        return found + ([f"{len(started)} processes are running"] if started else [])


def _threads() -> dict[int | None, str]:
    return {thread.ident: thread.name for thread in threading.enumerate()}


def _functions() -> Iterable[tuple[str, Any]]:
    """Yield the functions and constants that must not be replaced, with their names."""
    ours = [(f"{name}.", one) for name, one in sys.modules.items() if name.split(".")[0] == "kernel_pipeline"]
    # An installation has the kernels inside of the library.
    for module in [one for name, one in ours if not name.startswith(f"{loading.PACKAGE}.")]:
        yield from _of_module(module)
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "sleep"):
        yield f"time.{name}", getattr(time, name)
    for name, found in list(vars(torch).items()):
        if isinstance(found, BuiltinFunctionType):
            yield f"torch.{name}", found
    for owner, label, names in (
        (torch.Tensor, "torch.Tensor", TENSOR_METHODS),
        (torch.cuda, "torch.cuda", CUDA_FUNCTIONS),
        (torch.cuda.Event, "torch.cuda.Event", EVENT_METHODS),
        (torch.cuda.CUDAGraph, "torch.cuda.CUDAGraph", GRAPH_METHODS),
    ):
        for name in names:
            # Not getattr: a descriptor returns another object at each access.
            for place in getattr(owner, "__mro__", (owner,)):
                if name in vars(place):
                    yield f"{label}.{name}", vars(place)[name]
                    break


def _of_module(module: ModuleType) -> Iterable[tuple[str, Any]]:
    for name, found in list(vars(module).items()):
        if name.isupper():  # a constant
            yield f"{module.__name__}.{name}", found
        if not callable(found):
            continue
        yield f"{module.__name__}.{name}", found
        if isinstance(found, type) and found.__module__ == module.__name__:
            for member, value in list(vars(found).items()):
                if callable(value):
                    yield f"{module.__name__}.{name}.{member}", value
