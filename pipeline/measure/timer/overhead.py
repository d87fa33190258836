"""What a graph replay costs besides its launches' own durations, measured once a process.

    replay = launches * (duration + per_call) + per_replay

``per_call`` is the gap between a launch's end and the next one's start. No clock on the stream can see
it, so it comes from CUPTI, which stamps a kernel's start and end: the difference between a replay by
events and the durations of the same launches by CUPTI. ``per_replay`` follows from a short and a long
replay of the same launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median

import torch

from pipeline.measure.timer import cupti
from pipeline.measure.timer.events import recorded

SHORT, LONG = 32, 256
"""Launches in the two graphs."""

ELEMENTS = 1 << 18
"""Elements of the calibration's tensors: a kernel of 2 us that occupies all multiprocessors."""


WARM_UP_REPLAYS = 200
"""A tenth of a second."""

ROUNDS = 9
"""Times that the short and the long replay are measured."""


@dataclass(frozen=True)
class Overhead:
    """Microseconds that are taken off a replay. ``per_call_us`` is 0 where CUPTI can't be read: the gap is
    then part of every number."""

    per_call_us: float
    per_replay_us: float

    def net(self, replay_us: float, launches: int) -> float:
        """Microseconds a launch takes by itself. Never less than half of the gross time, so that a
        calibration gone wrong can't turn a time into nonsense unseen."""
        gross = replay_us / launches
        return max((replay_us - self.per_replay_us) / launches - self.per_call_us, gross / 2)


@cache
def calibrated() -> Overhead:
    """The overhead on this process's GPU; takes a second."""
    ring = [torch.randn(ELEMENTS, device="cuda") for _ in range(LONG)]
    short, long_ = _graph(ring[:SHORT]), _graph(ring)
    # An idle GPU needs some of this work to reach the clocks that it will keep.
    for _ in range(WARM_UP_REPLAYS):
        long_.replay()
    # In turn, so that what is left of the clocks' rise is in both alike.
    rounds = [(_replay_us(short), _replay_us(long_)) for _ in range(ROUNDS)]
    slope = median((long_us - short_us) / (LONG - SHORT) for short_us, long_us in rounds)
    per_replay = max(0.0, median(long_us - LONG * slope for _, long_us in rounds))
    duration = cupti.microseconds_a_call(long_.replay, LONG)
    per_call = max(0.0, slope - duration) if duration is not None else 0.0
    return Overhead(per_call_us=per_call, per_replay_us=per_replay)


def _graph(ring: list[torch.Tensor]) -> torch.cuda.CUDAGraph:
    outputs = [torch.mul(x, x) for x in ring]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, y in zip(ring, outputs, strict=True):
            torch.mul(x, x, out=y)
    return graph


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    graph.replay()
    events = [recorded()]
    for _ in range(10):
        graph.replay()
        events.append(recorded())
    events[-1].synchronize()
    replays_us: list[float] = [a.elapsed_time(b) * 1e3 for a, b in pairwise(events)]
    return median(replays_us)
