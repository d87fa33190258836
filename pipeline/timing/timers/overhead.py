"""What a graph replay costs besides its launches' own durations.

    replay = sum of durations + launches * per_call + per_replay

No clock on the stream can see the gap between a launch's end and the next one's start, so the durations
come from CUPTI, which stamps both. Two graphs, one of many short launches and one of few long ones, give the
two unknowns. Each graph's durations are its own: the gap of a graph depends on little, but a
launch's duration depends on what ran before it.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import torch

from pipeline.store.ceilings import NO_OVERHEAD, Overhead
from pipeline.timing.timers import cupti
from pipeline.timing.timers.events import recorded
from pipeline.timing.timers.graph import settle

MANY = (64, 1 << 20)
FEW = (4, 1 << 22)
"""Launches, and elements of each launch's tensors: about 4 us and 12 us a launch on an H200."""

WARM_UP_REPLAYS = 500
"""A tenth of a second: an idle GPU needs work to reach the clocks that it will keep."""

REPLAYS = 50


def calibrate() -> Overhead:
    """Measure the overhead on this process's GPU; takes some seconds, most of them CUPTI's start.

    ``NO_OVERHEAD`` where CUPTI can't be read.
    """
    settle()
    costs = {launches: _cost_us(launches, elements) for launches, elements in (MANY, FEW)}
    many, few = costs[MANY[0]], costs[FEW[0]]
    if many is None or few is None:
        return NO_OVERHEAD
    per_call = max(0.0, (many - few) / (MANY[0] - FEW[0]))
    return Overhead(per_call_us=per_call, per_replay_us=max(0.0, few - FEW[0] * per_call))


def _cost_us(launches: int, elements: int) -> float | None:
    """A replay's time less its launches' durations."""
    ring = [torch.randn(elements, device="cuda") for _ in range(launches)]
    outputs = [torch.mul(x, x) for x in ring]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x, y in zip(ring, outputs, strict=True):
            torch.mul(x, x, out=y)
    for _ in range(WARM_UP_REPLAYS):
        graph.replay()
    events = [recorded()]
    for _ in range(REPLAYS):
        graph.replay()
        events.append(recorded())
    events[-1].synchronize()
    replays_us: list[float] = [a.elapsed_time(b) * 1e3 for a, b in pairwise(events)]
    duration = cupti.microseconds_a_call(graph.replay, launches)
    return None if duration is None else median(replays_us) - launches * duration
