"""CUDA events, as the timers on a GPU use them."""

from __future__ import annotations

import torch


def recorded() -> torch.cuda.Event:
    """An event recorded on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def passed(event: torch.cuda.Event) -> bool:
    """Whether the device has come to the event."""
    return bool(event.query())  # type: ignore[no-untyped-call]
