"""CUDA events, as the timers on a GPU use them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from math import ceil
from time import perf_counter

import torch

from ..stopping import Stopping
from . import Rotation, Samples, checked_outputs, input_bytes


def recorded() -> torch.cuda.Event:
    """An event recorded on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def passed(event: torch.cuda.Event) -> bool:
    """Whether the device has come to the event."""
    return bool(event.query())  # type: ignore[no-untyped-call]


BATCH = 20
"""Launches that are queued before the host waits for their events."""

MARGIN = 2.0
"""The device's work before a launch over the time that the host takes to make it, at least."""

MOST_WRITES = 32
"""Writes before a launch at most, where late samples count: a call that synchronizes takes the host as long
as the device, whatever that has to do."""


class EventTimer:
    """One event pair a launch, with a write of ``flush_bytes`` before each (0 for a hot measurement)."""

    def __init__(self, flush_bytes: int) -> None:
        self.flush_bytes = flush_bytes

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Sample batches of single launches, each sample one launch."""
        flush = torch.empty(self.flush_bytes, dtype=torch.int8, device="cuda")
        inputs = cycle(rotation.inputs)
        for _ in range(3):
            rotation.call(*next(inputs))
        torch.cuda.synchronize()
        writes = self._writes(flush, lambda: rotation.call(*next(inputs)))
        samples: list[float] = []
        begin = perf_counter()
        while not samples or not stop.done(samples, perf_counter() - begin):
            launches = []
            for _ in range(BATCH):
                for _ in range(writes):
                    flush.zero_()
                start = recorded()
                rotation.call(*next(inputs))
                end = recorded()
                launches.append((start, end, passed(start)))
            torch.cuda.synchronize()
            with_late = not 0 < writes < MOST_WRITES
            samples += [
                start.elapsed_time(end) * 1e3 for start, end, late in launches if with_late or not late
            ]
            if any(late for *_, late in launches):
                writes = min(2 * writes, MOST_WRITES)
        touched = self.flush_bytes + input_bytes(rotation)
        return Samples("event", tuple(samples), rotation, partial(checked_outputs, rotation), touched)

    def _writes(self, flush: torch.Tensor, call: Callable[[], torch.Tensor]) -> int:
        """How often the cache is written over before a launch, so that the host is the first to be done."""
        if self.flush_bytes == 0:
            return 0
        host_s = 0.0
        for _ in range(3):
            begin = perf_counter()
            call()
            host_s = max(host_s, perf_counter() - begin)
        start = recorded()
        flush.zero_()
        end = recorded()
        end.synchronize()
        write_s: float = start.elapsed_time(end) / 1e3
        return min(max(1, ceil(MARGIN * host_s / write_s)), MOST_WRITES)
