"""Twice a vector, each in another way; most are wrong."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from itertools import count
from pathlib import Path

import torch

calls = count()


def right(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def talkative(x: torch.Tensor) -> torch.Tensor:
    print("printed by a provider")
    print("complained by a provider", file=sys.stderr)
    return x * 2


def wrong(x: torch.Tensor) -> torch.Tensor:
    out = x * 2
    out[-1] += 1
    return out


def nan(x: torch.Tensor) -> torch.Tensor:
    out = x * 2
    out[3] = torch.nan
    return out


def right_once(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if next(calls) == 0 else x * 3


def writes_once(x: torch.Tensor) -> torch.Tensor:
    """Later its output is what the memory held, which the first call filled with right values."""
    out = torch.empty_like(x)
    if not hasattr(writes_once, "done"):
        writes_once.done = True  # type: ignore[attr-defined]
        torch.mul(x, 2, out=out)
    return out


def remembers(x: torch.Tensor) -> torch.Tensor:
    """Computes once and returns the same tensor ever after."""
    if not hasattr(remembers, "out"):
        remembers.out = x * 2  # type: ignore[attr-defined]
    out: torch.Tensor = remembers.out  # type: ignore[attr-defined]
    return out


def never_writes(x: torch.Tensor) -> torch.Tensor:
    (x * 2).sum()
    return torch.empty_like(x)


def changes_input(x: torch.Tensor) -> torch.Tensor:
    out = x * 2
    x[0] += 1
    return out


def wrong_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.double() * 2


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[None]


def returns_none(x: torch.Tensor) -> None:
    x * 2


def endless(x: torch.Tensor) -> torch.Tensor:
    """Writes a file, which tells a test that it has begun."""
    Path("endless").touch()
    while True:
        x * 2


def raises(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("\x1b[91mit broke\x1b[0m\n  in two lines")


def exits(x: torch.Tensor) -> torch.Tensor:
    os._exit(3)


def is_killed(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def segfaults(x: torch.Tensor) -> torch.Tensor:
    ctypes.string_at(0)
    return x


def memory_error(x: torch.Tensor) -> torch.Tensor:
    raise MemoryError


def allocates(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(1 << 55, dtype=torch.float32)
