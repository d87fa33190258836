"""CUDA-graph replays: the default on a GPU, good from 1 us up.

A graph holds many launches, so the host is out of the picture: the device runs one after the other. The
launches go round the input sets, and their outputs lie apart, so that every launch finds a cold cache where
the sets together exceed it. An event stands between any two turns of the ring; a sample is a launch's share
of a turn, with nothing subtracted. The launch gap is in its fast mode meanwhile (see ``launch_gap``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil
from statistics import median
from time import perf_counter

import torch

from ..launch_gap import LaunchGap
from ..stopping import Stopping
from . import Reading, Rotation, Samples, input_bytes
from .capture import Ring, capture
from .event import recorded

TURN_US = 800.0
"""A turn lasts about this long, or as long as the ring takes once. Ten turns are enough: on an H200 twelve
medians of 4 ms of samples spread over 1.1 to 1.5 % (softmax of 4096x1024), of 8 ms over 0.8 %."""

WARM_UP_US = 500.0
"""Turns before the first sample: the first replay of a graph also uploads it."""

PILOT = 4
"""Launches in the graph that finds out how long one takes."""

BATCH = 10
"""Turns between two looks at the samples."""

TRIES = 3
"""How often samples are taken whose canary was late."""


class GraphTimer:
    """Times replays of graphs that hold the rotation's calls, in the fast mode of the launch gap."""

    def __init__(self, gap: LaunchGap) -> None:
        self.gap = gap

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Capture, set the mode, warm up and sample; again while the canary is late. Raises
        NotCapturableError when the call can't be captured."""
        once_us = self._pilot(rotation)
        ring = capture(rotation, round(TURN_US / once_us))
        warm_up = ceil(WARM_UP_US / (once_us * ring.launches))
        for _ in range(TRIES):
            self.gap.set_mode()
            before_us = self.gap.read()
            for _ in range(warm_up):
                ring.turn()
            samples = sampled(ring.turn, ring.graphs[-1].replay, ring.launches, stop)
            reading = Reading(before_us, self.gap.read())
            if not self.gap.is_late(reading, median(samples)):
                break
        return Samples(
            timer="graph",
            samples_us=tuple(samples),
            rotation=rotation,
            again=partial(ring.again, rotation.in_place),
            touched_bytes=input_bytes(rotation) + _output_bytes(rotation, ring),
            canary=reading,
            turn=ring.turn,
            launches=ring.launches,
        )

    def _pilot(self, rotation: Rotation) -> float:
        """Microseconds a launch takes, roughly; also what shows that the call can be captured."""
        ring = capture(replace(rotation, inputs=rotation.inputs[:PILOT]), PILOT)
        ring.graphs[0].replay()
        start = recorded()
        ring.graphs[0].replay()
        end = recorded()
        end.synchronize()
        replay_us: float = start.elapsed_time(end) * 1e3
        return max(0.5, replay_us / ring.launches)


def sampled(turn: Callable[[], None], fill: Callable[[], None], launches: int, stop: Stopping) -> list[float]:
    """Microseconds of a launch in each of some turns; ``fill`` keeps the device busy until these are
    queued."""
    samples: list[float] = []
    begin = perf_counter()
    while not stop.done(samples, perf_counter() - begin):
        # The device has gone idle since the last batch: the end of a turn fills its queue again.
        fill()
        events = [recorded()]
        for _ in range(BATCH):
            turn()
            events.append(recorded())
        events[-1].synchronize()
        samples += [start.elapsed_time(end) * 1e3 / launches for start, end in pairwise(events)]
    return samples


def _output_bytes(rotation: Rotation, ring: Ring) -> int:
    """Bytes of all outputs that lie apart from each other and from the inputs."""
    inputs = {x.data_ptr() for set_ in rotation.inputs for x in set_}
    made = [out for outputs in ring.outputs for out in outputs or () if isinstance(out, torch.Tensor)]
    return sum({out.data_ptr(): out.nbytes for out in made if out.data_ptr() not in inputs}.values())
