"""Providers that answer in the worker's place."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import struct
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

FORGED = {
    "Timed": {
        "timing": {
            "timer": "perf_counter",
            "cache": "cold",
            "median_us": 0.001,
            "p20_us": 0.001,
            "p80_us": 0.001,
            "min_us": 0.001,
            "rel_ci": 0.0,
            "overhead_us": 0.0,
            "n_samples": 3,
            "samples_us": [0.001, 0.001, 0.001],
        },
        "state": {"valid": True},
        "sets": 1,
    }
}
"""What a worker says of a timing, in the form in which it says so."""


def edits_the_reply(x: torch.Tensor) -> torch.Tensor:
    """Computes, and whatever leaves this process tells a thousandth of each time."""
    connection: Any = Connection
    if connection.send_bytes.__module__ != __name__:
        real = connection.send_bytes

        def send_bytes(self: Connection, data: bytes, *args: Any) -> None:
            real(self, _thousandth(bytes(data)), *args)

        connection.send_bytes = send_bytes
    return torch.sinc(x)


def _thousandth(message: bytes) -> bytes:
    """The message with every number of microseconds a thousandth of what it was."""

    def less(match: re.Match[bytes]) -> bytes:
        numbers = re.sub(rb"\d+(\.\d+)?(e-?\d+)?", lambda one: b"%g" % (float(one[0]) / 1000), match[2])
        return match[1] + numbers

    return re.sub(rb'("\w+_us":\s*)(\[[^\]]*\]|[\d.e-]+)', less, message)


def forges_a_reply(x: torch.Tensor) -> torch.Tensor:
    """Says that all is well, and waits."""
    _forge()
    time.sleep(1)
    return torch.empty_like(x)


def forges_and_exits(x: torch.Tensor) -> torch.Tensor:
    """Says that all is well and is gone before anyone can ask."""
    _forge()
    os._exit(0)


def forges_later(x: torch.Tensor) -> torch.Tensor:
    """Computes, and leaves a thread behind that answers for whoever comes next."""
    if not hasattr(forges_later, "done"):
        forges_later.done = True  # type: ignore[attr-defined]
        threading.Thread(target=_forge_on, name="cheat", daemon=True).start()
    return torch.sinc(x)


def child_forges(x: torch.Tensor) -> torch.Tensor:
    """The same by a process of its own session, whose parent is gone: it outlives the worker."""
    if not hasattr(child_forges, "done"):
        child_forges.done = True  # type: ignore[attr-defined]
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open("forger.pid", "w") as file:  # noqa: PTH123 - no import in a forked process
                    file.write(str(os.getpid()))
                _forge_on()
            os._exit(0)
        os.wait()
    return torch.sinc(x)


def _forge_on() -> None:
    for _ in range(600):
        time.sleep(0.1)
        _forge()


def _forge() -> None:
    """Write a forged reply to every socket of this process."""
    message = json.dumps(FORGED).encode()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as held:
                    held.send(struct.pack("!i", len(message)) + message, socket.MSG_DONTWAIT)
        except OSError:
            continue
