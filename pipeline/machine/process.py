"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """End this process when its parent ends, however that ends, so that no orphan keeps a device busy; and
    leave Ctrl-C to the parent, who gets it too.

    Linux: prctl(2). ``parent`` is the parent's process id, which tells whether it is gone already.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
