"""Host clock around calls on the CPU, which return when they are done."""

from __future__ import annotations

from itertools import cycle
from math import ceil
from time import perf_counter

from pipeline.measure.stopping import Stopping
from pipeline.measure.timer import Samples, Workload, checked_output, input_bytes

SHORTEST_SAMPLE_US = 200.0
"""Short calls are timed in batches at least this long, far above the clock's own cost (under 0.1 us)."""


class CpuTimer:
    """``time.perf_counter`` around a batch of calls."""

    def measure(self, workload: Workload, stop: Stopping) -> Samples:
        """Sample batches of calls, each batch a whole number of turns of its own through the inputs."""
        inputs = cycle(workload.inputs)
        for _ in range(2):
            start = perf_counter()
            workload.call(*next(inputs))
            once_us = (perf_counter() - start) * 1e6
        batch = max(1, ceil(SHORTEST_SAMPLE_US / max(once_us, 0.1)))
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            start = perf_counter()
            for _ in range(batch):
                workload.call(*next(inputs))
            samples.append((perf_counter() - start) / batch * 1e6)
        return Samples("perf_counter", tuple(samples), checked_output(workload), input_bytes(workload))
