"""CUDA events around each launch: the plain way, good from about 50 us up.

An event pair costs 1 to 4 us itself, which is in the number. The second-level cache is written over
between launches when the measurement is a cold one; that work also keeps the queue full, so that the launch's
host time does not show.
"""

from __future__ import annotations

from itertools import cycle
from time import perf_counter

import torch

from pipeline.measure.stopping import Stopping
from pipeline.measure.timer import Samples, Workload, checked_output, input_bytes
from pipeline.measure.timer.events import recorded

BATCH = 20
"""Launches that are queued before the host waits for their events."""


class EventTimer:
    """One event pair a launch, with a write of ``flush_bytes`` before each (0 for a hot measurement)."""

    def __init__(self, flush_bytes: int) -> None:
        self.flush_bytes = flush_bytes

    def measure(self, workload: Workload, stop: Stopping) -> Samples:
        """Sample batches of single launches, each sample one launch."""
        flush = torch.empty(self.flush_bytes, dtype=torch.int8, device="cuda")
        inputs = cycle(workload.inputs)
        for _ in range(3):
            workload.call(*next(inputs))
        torch.cuda.synchronize()
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            pairs = []
            for _ in range(BATCH):
                flush.zero_()
                start = recorded()
                workload.call(*next(inputs))
                pairs.append((start, recorded()))
            torch.cuda.synchronize()
            samples += [start.elapsed_time(end) * 1e3 for start, end in pairs]
        touched = self.flush_bytes + input_bytes(workload)
        return Samples("event", tuple(samples), checked_output(workload), touched)
