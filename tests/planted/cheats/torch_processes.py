"""Providers that end, hang, flood, or leave processes behind."""

from __future__ import annotations

import os
import time

import torch

LOOKED_S = 1.0
"""The supervisor has looked at what was printed by then."""

LONG_S = 3600
FLOOD = 64 << 20
KEPT = 16 << 20


def exits_at_once(x: torch.Tensor) -> torch.Tensor:
    """As if all had gone well."""
    os._exit(0)


def child_holds_the_socket(x: torch.Tensor) -> torch.Tensor:
    """The worker is gone, and its end of the socket is still open."""
    _leave("holder.pid", new_session=False)
    os._exit(3)


def child_survives(x: torch.Tensor) -> torch.Tensor:
    """Honest, but leaves a process that computes beside the next provider."""
    if not hasattr(child_survives, "done"):
        child_survives.done = True  # type: ignore[attr-defined]
        _leave("child.pid", new_session=False)
    return torch.sinc(x)


def daemon_survives(x: torch.Tensor) -> torch.Tensor:
    """The same in a session of its own, and without a parent."""
    if not hasattr(daemon_survives, "done"):
        daemon_survives.done = True  # type: ignore[attr-defined]
        _leave("daemon.pid", new_session=True)
    return torch.sinc(x)


def _leave(file: str, new_session: bool) -> None:
    """Leave a process behind that sleeps, with its id in a file."""
    if os.fork() == 0:
        if new_session:
            os.setsid()
            if os.fork():
                os._exit(0)
        with open(f"{file}.part", "w") as opened:  # noqa: PTH123 - no import in a forked process
            opened.write(str(os.getpid()))
        os.rename(f"{file}.part", file)  # noqa: PTH104
        time.sleep(LONG_S)
        os._exit(0)
    while not os.path.exists(file):  # noqa: PTH110
        time.sleep(0.001)


def prints(x: torch.Tensor) -> torch.Tensor:
    """Honest, but it fills the disk: it prints a lot and raises RuntimeError if all of that was kept."""
    if not hasattr(prints, "done"):
        prints.done = True  # type: ignore[attr-defined]
        for _ in range(FLOOD >> 16):
            os.write(1, (b"x" * 127 + b"\n") * 512)
        time.sleep(LOOKED_S)
        if os.fstat(1).st_size > KEPT:
            raise RuntimeError("the disk holds it all")
    return torch.sinc(x)


def sleeps(x: torch.Tensor) -> torch.Tensor:
    """With a child beside it."""
    _leave("sleeper.pid", new_session=True)
    time.sleep(LONG_S)
    return x
