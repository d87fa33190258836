"""Honest providers; one of them first checks whether another left anything in its process."""

from __future__ import annotations

import gc
import multiprocessing.connection
import os
import random
import signal
import threading
import time
from pathlib import Path

import torch

LEFT_THREADS = 61
LEFT_VARIABLE = "LEFT_BY_A_CHEAT"


def honest(x: torch.Tensor) -> torch.Tensor:
    return torch.sinc(x)


def finds_nothing_left(x: torch.Tensor) -> torch.Tensor:
    """Raises RuntimeError for what an earlier provider left in this process."""
    if not hasattr(finds_nothing_left, "looked"):
        finds_nothing_left.looked = True  # type: ignore[attr-defined]
        if left := what_is_left():
            raise RuntimeError(f"an earlier provider left {', '.join(left)}")
    return torch.sinc(x)


def what_is_left() -> list[str]:
    """The changes of this process since its start."""
    # Read from the objects themselves, for the functions that would tell are among what may be patched.
    changed = {
        "its number of threads": torch.get_num_threads() == LEFT_THREADS,
        "a matmul precision": torch.get_float32_matmul_precision() != "highest",
        "a default dtype": torch.get_default_dtype() != torch.float32,
        "autograd's mode": torch.is_inference_mode_enabled(),
        "an environment variable": LEFT_VARIABLE in os.environ,
        "a working directory": Path.cwd() == Path("/"),
        "a signal's handler": signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL,
        "the collector off": not gc.isenabled(),
        "a clock": type(time.perf_counter).__name__ != "builtin_function_or_method",
        "torch.sinc": type(torch.sinc).__name__ != "builtin_function_or_method",
        "torch.equal": type(torch.equal).__name__ != "builtin_function_or_method",
        "Tensor.copy_": type(torch.Tensor.copy_).__name__ != "method_descriptor",
        "Tensor.all": type(torch.Tensor.all).__name__ != "method_descriptor",
        "Connection.send_bytes": multiprocessing.connection.Connection.send_bytes.__module__
        != "multiprocessing.connection",
        "a thread": any(thread.name.startswith("cheat") for thread in threading.enumerate()),
        "a child": bool(own_children()),
        "a random state": random.getstate()[1][0] == 61,
    }
    if torch.cuda.is_initialized():
        changed |= {
            "a stream": torch.cuda.current_stream() != torch.cuda.default_stream(),
            "Event.elapsed_time": torch.cuda.Event.elapsed_time.__module__ != "torch.cuda.streams",
            "CUDAGraph.replay": torch.cuda.CUDAGraph.replay.__module__ != "torch.cuda.graphs",
            "torch.cuda.synchronize": torch.cuda.synchronize.__module__ != "torch.cuda",
        }
    return [what for what, is_so in changed.items() if is_so]


def own_children() -> list[int]:
    """The children of this process that are alive."""
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []
