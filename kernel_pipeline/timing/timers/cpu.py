"""The CPU timer: the host clock around calls, which return when they are done."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from math import ceil
from time import perf_counter

from ..stopping import Stopping
from . import Rotation, Samples, checked_outputs, input_bytes

SHORTEST_SAMPLE_US = 200.0
"""The least length of a sample. Short calls are timed in batches, so that the clock's own cost (under 0.1 us)
does not matter."""


class CpuTimer:
    """Times batches of calls by ``time.perf_counter``."""

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Sample batches of calls that take the input sets in turn."""
        inputs = cycle(rotation.inputs)
        for _ in range(2):
            start = perf_counter()
            rotation.call(*next(inputs))
            once_us = (perf_counter() - start) * 1e6
        batch = max(1, ceil(SHORTEST_SAMPLE_US / max(once_us, 0.1)))
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            start = perf_counter()
            for _ in range(batch):
                rotation.call(*next(inputs))
            samples.append((perf_counter() - start) / batch * 1e6)
        return Samples(
            "perf_counter",
            tuple(samples),
            rotation,
            partial(checked_outputs, rotation),
            input_bytes(rotation),
        )
