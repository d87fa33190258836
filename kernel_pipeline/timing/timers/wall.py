"""The wall timer: the host clock around a launch and a synchronization, to show that this is wrong.

The time includes the launch's host time and the wait for the device, 10 us and more whatever the kernel does.
"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from time import perf_counter

import torch

from ..stopping import Stopping
from . import Rotation, Samples, checked_outputs, input_bytes


class WallTimer:
    """Times single calls by ``time.perf_counter``. Without ``synchronize`` it times the launch alone."""

    def __init__(self, synchronize: bool = True) -> None:
        self.synchronize = synchronize

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Sample single calls."""
        inputs = cycle(rotation.inputs)
        for _ in range(3):
            rotation.call(*next(inputs))
        torch.cuda.synchronize()
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            start = perf_counter()
            rotation.call(*next(inputs))
            if self.synchronize:
                torch.cuda.synchronize()
            samples.append((perf_counter() - start) * 1e6)
            torch.cuda.synchronize()
        name = "wall" if self.synchronize else "wall_no_sync"
        again = partial(checked_outputs, rotation)
        return Samples(name, tuple(samples), rotation, again, input_bytes(rotation))
