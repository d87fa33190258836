"""Processes that must not outlive the one that started them, and what those without a GPU are told."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1

INTERPRETERS = {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"}
"""What lets a process run Triton under its interpreter and Numba under its simulator. Both are read when a
kernel's module is imported."""

WITHOUT_PLUGINS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRITON_BACKENDS_IN_TREE": "1"}
"""What lets a process import torch and Triton without a look at every installed package, for devices of other
kinds than those that are measured here."""

WARDEN = Path(__file__).with_name("warden.py")


def under_warden(command: Sequence[str]) -> list[str]:
    """The command line that runs a command so that it ends, with every process that it has started, when this
    process or the thread that starts it does, however that ends. SIGTERM ends it all, too."""
    return [sys.executable, "-I", "-S", str(WARDEN), str(os.getpid()), *command]


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends, so that no orphan keeps a device busy; and
    leave Ctrl-C to the parent, who gets it too.

    Linux: prctl(2). ``parent`` is the parent's process id, which tells whether it is gone already.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
