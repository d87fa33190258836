"""What a provider may leave changed in its process, so that no later row depends on an earlier provider."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

import torch

from pipeline.machine.warden import children
from pipeline.store.variables import is_in_key

TENSOR_METHODS = (
    *("copy_", "clone", "fill_", "view", "as_strided", "contiguous", "data_ptr", "expand", "repeat"),
    *("bitwise_not_", "logical_not_", "is_floating_point", "__getitem__"),
)
CUDA_FUNCTIONS = ("Event", "CUDAGraph", "Stream", "stream", "current_stream", "synchronize", "graph")
EVENT_METHODS = ("record", "query", "elapsed_time", "synchronize", "__new__", "__init__")
GRAPH_METHODS = ("capture_begin", "capture_end", "replay", "__new__", "__init__")
"""What the code that times calls, of torch; with all of torch's functions that are not written in Python."""


class ProcessState:
    """The process as it is now, to be compared with later."""

    def __init__(self) -> None:
        self._functions = {name: id(found) for name, found in _functions()}
        # Held, so that nothing new gets the identity of what was there.
        self._held = [found for _, found in _functions()]
        self._settings = _settings()
        self._threads = _threads()
        self._children = set(children(os.getpid()))

    def replaced(self) -> list[str]:
        """Functions that time, or that the code which times calls, and that are others now."""
        now = {name: id(found) for name, found in _functions()}
        return sorted(name for name, was in self._functions.items() if now.get(name) != was)

    def changed(self) -> list[str]:
        """Settings that have other values now, threads and processes that are still there."""
        now = _settings()
        found = [
            f"{name} is {now.get(name)} instead of {self._settings.get(name)}"
            for name in sorted(now.keys() | self._settings.keys())
            if now.get(name) != self._settings.get(name)
        ]
        threads = [name for ident, name in _threads().items() if ident not in self._threads]
        found += [f"thread {name} is running" for name in threads]
        started = set(children(os.getpid())) - self._children
        return found + ([f"{len(started)} processes are running"] if started else [])


def _said(read: Callable[[], object]) -> object:
    """What a switch is, or why it can't say: torch's own are of two generations that don't mix."""
    try:
        return read()
    except RuntimeError as error:
        return str(error).split(".", maxsplit=1)[0]


def of_triton() -> dict[str, str]:
    """The environment variables that steer Triton."""
    return {name: value for name, value in os.environ.items() if name.startswith("TRITON_")}


def put_back(before: Mapping[str, str]) -> None:
    """Give Triton's variables the values that ``of_triton`` found. It reads them whenever it compiles, so
    that nothing of their change is left; Inductor names another assembler by one of them."""
    for name in of_triton().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _threads() -> dict[int | None, str]:
    return {thread.ident: thread.name for thread in threading.enumerate()}


def _settings() -> dict[str, object]:
    cuda: dict[str, object] = {}
    on_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if on_gpu:
        cuda["the current CUDA stream"] = torch.cuda.current_stream().cuda_stream
    switches: Mapping[str, Callable[[], object]] = {
        "torch.get_num_threads()": torch.get_num_threads,
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
        "torch.get_default_dtype()": torch.get_default_dtype,
        "torch.get_default_device()": torch.get_default_device,
        "torch.is_grad_enabled()": torch.is_grad_enabled,
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
        "torch.is_autocast_enabled()": torch.is_autocast_enabled,
        "torch.get_deterministic_debug_mode()": torch.get_deterministic_debug_mode,
        "gc.isenabled()": gc.isenabled,
        "the working folder": Path.cwd,
    }
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        **{name: _said(read) for name, read in switches.items()},
        "cuda.matmul.allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "cuda.matmul.allow_bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.enabled": cudnn.enabled,
        "cudnn.benchmark": cudnn.benchmark,
        "cudnn.deterministic": cudnn.deterministic,
        "cudnn.conv.fp32_precision": cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        **{name: value for name, value in os.environ.items() if is_in_key(name, on_gpu)},
        **cuda,
    }


def _functions() -> Iterable[tuple[str, Any]]:
    """What must stay what it is, by name."""
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] == "pipeline"]:
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
            # Not getattr: what a class has by a descriptor is another object each time.
            for place in getattr(owner, "__mro__", (owner,)):
                if name in vars(place):
                    yield f"{label}.{name}", vars(place)[name]
                    break


def _of_module(module: ModuleType) -> Iterable[tuple[str, Any]]:
    for name, found in list(vars(module).items()):
        if not callable(found):
            continue
        yield f"{module.__name__}.{name}", found
        if isinstance(found, type) and found.__module__ == module.__name__:
            for member, value in list(vars(found).items()):
                if callable(value):
                    yield f"{module.__name__}.{name}.{member}", value
