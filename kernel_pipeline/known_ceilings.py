"""This machine's ceilings, measured once and kept in the user's cache."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from .arguments import on_device
from .machine import load
from .records.ceilings import Rates
from .timing import rates

BUSY = 0.05
"""The largest run-queue delay, as a share of time; above it other processes used the cores, and a CPU's times
are invalid."""


def of_device(device: torch.device) -> Rates:
    """Return the device's copy and matrix-product rates. The first call measures them, which takes seconds,
    and keeps them. Rates that were measured while other processes used a CPU's cores are not kept."""
    path = _path(device)
    try:
        return Rates.from_json(path.read_bytes())
    except (OSError, ValueError):
        before = load.threads_of(os.getpid())
        with on_device(device), _usual_arithmetic(device):
            found = rates.measure(device.type)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif load.scheduled(before, load.threads_of(os.getpid())).delay > BUSY:
        return found
    with suppress(OSError):  # without the file the next call measures again
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = path.with_suffix(f".{os.getpid()}")
        mine.write_bytes(found.to_json())
        mine.replace(path)
    return found


@contextmanager
def _usual_arithmetic(device: torch.device) -> Iterator[None]:
    """Use torch's default dtype and autocast settings meanwhile, and restore the user's settings at the
    end."""
    tf32, dtype = torch.backends.cuda.matmul.allow_tf32, torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast(device.type, enabled=False), torch.no_grad():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.set_default_dtype(dtype)


def _path(device: torch.device) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
    threads = "" if device.type == "cuda" else f"-{torch.get_num_threads()}"
    slug = re.sub(r"[^a-z0-9.]+", "-", f"{name}-torch-{torch.__version__}".lower()).strip("-")
    return cache / "kernel-pipeline" / "ceilings" / f"{slug}{threads}.json"
