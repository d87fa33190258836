"""CUDA events, and the timer that brackets each launch by two of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from math import ceil
from time import perf_counter

import torch

from ..stopping import Stopping
from . import Rotation, Samples, checked_outputs, input_bytes


def recorded() -> torch.cuda.Event:
    """Record an event on the current stream and return it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def timed(run: Callable[[], object], count: int, flush: Callable[[], object] | None = None) -> list[float]:
    """Return the microseconds of each of ``count`` runs on the device, one after the other, without the
    ``flush`` before each."""
    events = [recorded()]
    for _ in range(count):
        if flush is not None:
            flush()
            events.append(recorded())
        run()
        events.append(recorded())
    events[-1].synchronize()
    spans = [start.elapsed_time(end) * 1e3 for start, end in pairwise(events)]
    return spans if flush is None else spans[1::2]


def cache_flush(bytes_: int) -> Callable[[], object]:
    """Return a function that writes so many bytes of device memory in one launch."""
    return torch.empty(bytes_, dtype=torch.int8, device="cuda").zero_


def passed(event: torch.cuda.Event) -> bool:
    """Whether the device has reached the event."""
    return bool(event.query())  # type: ignore[no-untyped-call]


BATCH = 20
"""The launches to queue before the host waits for their events."""

MARGIN = 2.0
"""The least ratio of the device's flush time before a launch to the host's time for the launch."""

MOST_WRITES = 32
"""The maximum number of flush writes before a launch. At this number late samples are kept, too: a call that
synchronizes is always late, because it takes the host as long as the device."""


class EventTimer:
    """Times each launch by a pair of events, and writes ``flush_bytes`` before it (0 for a hot measurement).

    A sample is late if the device reached the first event before the host had queued the launch: it may then
    include idle time.
    """

    def __init__(self, flush_bytes: int) -> None:
        self.flush_bytes = flush_bytes

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Sample batches of launches; each sample is one launch."""
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
        """Return the number of flush writes before a launch, so that the host queues the launch before the
        device has finished the writes."""
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
