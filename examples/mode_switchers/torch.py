"""Twice a vector by torch, after other work that switches the mode of the launch gap."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.profiler import ProfilerActivity, profile

STREAMS = 8
CAPTURES = 6

kept: list[torch.cuda.CUDAGraph] = []


def plain(x: torch.Tensor) -> torch.Tensor:
    """Do no other work."""
    return x * 2


def streams(x: torch.Tensor) -> torch.Tensor:
    """Work on eight streams, which switches to the slow mode."""
    if not torch.cuda.is_current_stream_capturing():
        for _ in range(STREAMS):
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                torch.neg(x)
        torch.cuda.synchronize()
    return x * 2


def captures(x: torch.Tensor) -> torch.Tensor:
    """Capture six graphs and keep them, which switches to the slow mode."""
    if not torch.cuda.is_current_stream_capturing() and len(kept) < CAPTURES:
        for _ in range(CAPTURES):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                torch.neg(x)
            kept.append(graph)
    return x * 2


def profiles(x: torch.Tensor) -> torch.Tensor:
    """Profile with CUPTI, which switches to neither mode."""
    if not torch.cuda.is_current_stream_capturing():
        with profile(activities=[ProfilerActivity.CUDA]):
            torch.neg(x)
            torch.cuda.synchronize()
    return x * 2


def second_process(x: torch.Tensor) -> torch.Tensor:
    """Run a kernel of another process, which switches to the fast mode."""
    if not torch.cuda.is_current_stream_capturing() and not hasattr(second_process, "ran"):
        second_process.ran = True  # type: ignore[attr-defined]
        other = "import torch; torch.zeros(1, device='cuda').add_(1); torch.cuda.synchronize()"
        subprocess.run([sys.executable, "-c", other], check=True)
    return x * 2
