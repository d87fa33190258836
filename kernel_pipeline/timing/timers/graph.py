"""The graph timer: replays of CUDA graphs, the default on a GPU, for kernels from 1 us up.

A graph holds many launches, which the device runs back to back without waiting for the host. The launches go
round the input sets and write separate outputs, so that every launch finds a cold cache if the sets together
exceed it, or if the cache is flushed before each turn. Events are recorded before and after each turn of the
ring. A sample is the time of a turn divided by its launches; nothing is subtracted. The launch gap is in its
fast mode meanwhile (see ``launch_gap``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter

import torch

from ..launch_gap import LaunchGap
from ..stopping import Stopping
from . import Reading, Rotation, Samples, input_bytes
from .capture import Ring, capture
from .event import cache_flush, recorded, timed

TURN_US = 800.0
"""The target length of a turn; a turn covers the ring at least once. Ten turns are enough: on an H200 twelve
medians of softmax (4096x1024) spread over 1.1 to 1.5 % with 4 ms of samples each, and over 0.8 % with 8
ms."""

WARM_UP_US = 500.0
"""The length of the warm-up: the first replay of a graph also uploads it."""

PILOT = 4
"""The maximum number of launches in the graph that estimates the time of a launch."""

BATCH = 10
"""Turns in a batch of samples, after which the stopping criterion is checked."""

TRIES = 3
"""The maximum number of attempts to sample while the canary is late."""


class GraphTimer:
    """Times replays of graphs of the rotation's calls, in the fast mode of the launch gap. Sets that don't
    exceed the cache need ``flush_bytes``, written before each turn, which then has one launch for each
    set."""

    def __init__(self, gap: LaunchGap, flush_bytes: int = 0) -> None:
        self.gap = gap
        self.flush_bytes = flush_bytes

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Capture, set the mode, warm up and sample; repeat from setting the mode while the canary is late.
        Raises NotCapturableError if the call can't be captured."""
        once_us = self._pilot(rotation)
        ring = capture(rotation, 1 if self.flush_bytes else round(TURN_US / once_us))
        flush = cache_flush(self.flush_bytes) if self.flush_bytes else None
        warm_up = ceil(WARM_UP_US / (once_us * ring.launches))
        for _ in range(TRIES):
            self.gap.set_mode()
            before_us = self.gap.read()
            for _ in range(warm_up):
                ring.turn()
            samples = sampled(ring.turn, ring.graphs[-1].replay, ring.launches, stop, flush)
            reading = Reading(before_us, self.gap.read())
            if not self.gap.is_late(reading, median(samples)):
                break
        return Samples(
            timer="graph",
            samples_us=tuple(samples),
            rotation=rotation,
            again=partial(ring.again, rotation.in_place),
            touched_bytes=self.flush_bytes + input_bytes(rotation) + _output_bytes(rotation, ring),
            canary=reading,
            turn=ring.turn,
            launches=ring.launches,
            flush=flush,
        )

    def _pilot(self, rotation: Rotation) -> float:
        """Return a rough time of a launch in microseconds. Raises NotCapturableError."""
        ring = capture(replace(rotation, inputs=rotation.inputs[:PILOT]), PILOT)
        ring.graphs[0].replay()
        start = recorded()
        ring.graphs[0].replay()
        end = recorded()
        end.synchronize()
        replay_us: float = start.elapsed_time(end) * 1e3
        return max(0.5, replay_us / ring.launches)


def sampled(
    turn: Callable[[], None],
    fill: Callable[[], None],
    launches: int,
    stop: Stopping,
    flush: Callable[[], object] | None = None,
) -> list[float]:
    """Return the time per launch of each turn, in microseconds. ``fill`` keeps the device busy until a batch
    of turns is queued. ``flush`` comes before each turn, and is not timed."""
    samples: list[float] = []
    begin = perf_counter()
    while not stop.done(samples, perf_counter() - begin):
        # The device has been idle since the last batch, so give it work before the first event.
        fill()
        samples += [us / launches for us in timed(turn, BATCH, flush)]
    return samples


def _output_bytes(rotation: Rotation, ring: Ring) -> int:
    """Return the bytes of all outputs at different addresses that are not inputs."""
    inputs = {x.data_ptr() for set_ in rotation.inputs for x in set_}
    made = [out for outputs in ring.outputs for out in outputs or () if isinstance(out, torch.Tensor)]
    return sum({out.data_ptr(): out.nbytes for out in made if out.data_ptr() not in inputs}.values())
