"""CUDA-graph replays: the default on a GPU, good from 1 us up.

A graph holds many launches, so the host is out of the picture: the device runs one after the other with
a gap of a few tenths of a microsecond. The launches go round the input sets, and their outputs lie apart, so
that every launch finds a cold cache where the sets together exceed it. An event stands between any
two replays; a sample is a replay's time over its launches, less the gap (see ``overhead``).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil
from time import perf_counter

import torch

from pipeline.measure.ceiling import Overhead
from pipeline.measure.stopping import Stopping
from pipeline.measure.timer import Samples, Workload
from pipeline.measure.timer.events import recorded

REPLAY_US = 200.0
"""A replay lasts about this long, so that what it costs besides its launches is small and well known."""

WARM_UP_US = 2000.0
"""Replays before the first sample, so that clocks have left their idle state."""

PILOT = 4
"""Launches in the graph that finds out how long one takes."""

SETTLING_GRAPHS = 8
"""Twice as many as were seen to be needed."""

BATCH = 10
"""Replays between two looks at the samples."""


_KEEPERS: list[torch.cuda.CUDAGraph] = []


class NotCapturableError(Exception):
    """The call does something that a graph can't hold: it synchronizes, or works on the host."""


@dataclass
class Ring:
    """Graphs that together go once or more round all input sets, and the outputs they write."""

    graphs: list[torch.cuda.CUDAGraph]
    launches: list[int]
    outputs: list[torch.Tensor | None]

    def replay(self) -> None:
        """Replay all graphs: each input set at least once."""
        for graph in self.graphs:
            graph.replay()


class GraphTimer:
    """Times replays of graphs that hold the workload's calls."""

    def __init__(self, overhead: Overhead) -> None:
        self.overhead = overhead

    def measure(self, workload: Workload, stop: Stopping) -> Samples:
        """Capture, warm up and sample. Raises NotCapturableError when the call can't be captured."""
        settle()
        once_us = self._pilot(workload)
        ring = capture(workload, max(1, ceil(REPLAY_US / once_us)))
        turns = 0

        def replay() -> int:
            nonlocal turns
            index = turns % len(ring.graphs)
            ring.graphs[index].replay()
            turns += 1
            return ring.launches[index]

        for _ in range(max(1, ceil(WARM_UP_US / (once_us * ring.launches[0])))):
            replay()
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            # The device has gone idle since the last batch: the first replay only fills its queue again.
            replay()
            events, launches = [recorded()], []
            for _ in range(BATCH):
                launches.append(replay())
                events.append(recorded())
            events[-1].synchronize()
            samples += [
                self.overhead.net(start.elapsed_time(end) * 1e3, count)
                for (start, end), count in zip(pairwise(events), launches, strict=True)
            ]
        return Samples("graph", tuple(samples), self._checked_output(ring), self.overhead.per_call_us)

    def _pilot(self, workload: Workload) -> float:
        """Microseconds a launch takes, roughly; also what shows that the call can be captured."""
        ring = capture(Workload(workload.call, workload.inputs[:PILOT]), PILOT)
        ring.graphs[0].replay()
        start = recorded()
        ring.graphs[0].replay()
        end = recorded()
        end.synchronize()
        replay_us: float = start.elapsed_time(end) * 1e3
        return max(0.5, replay_us / ring.launches[0])

    @staticmethod
    def _checked_output(ring: Ring) -> torch.Tensor:
        """The first set's output as one more turn of the very graphs that were timed writes it, over NaN."""
        output = ring.outputs[0]
        assert output is not None, "a ring holds an output for each set"
        output.fill_(float("nan"))
        ring.replay()
        return output


def capture(workload: Workload, launches: int) -> Ring:
    """Graphs of about ``launches`` calls each that go round all input sets.

    Few sets: one graph that goes round them several times. Many: several graphs, a part of the ring each.
    """
    sets = len(workload.inputs)
    per_graph = sets * ceil(launches / sets) if sets <= launches else launches
    total = max(sets, per_graph)
    ring = Ring([], [], [None] * sets)
    workload.call(*workload.inputs[0])
    torch.cuda.synchronize()
    with torch.cuda.stream(_capturing()):
        for first in range(0, total, per_graph):
            turns = range(first, min(first + per_graph, total))
            # Not through torch.cuda.graph: it collects garbage and empties the allocator's cache first,
            # which takes longer than all the rest.
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(_pool(), capture_error_mode="thread_local")
            try:
                for turn in turns:
                    # The previous output of this set is let go, so that memory does not grow with turns.
                    ring.outputs[turn % sets] = workload.call(*workload.inputs[turn % sets])
                graph.capture_end()
            except torch.OutOfMemoryError:
                _abort(graph)
                raise
            except RuntimeError as error:
                _abort(graph)
                raise NotCapturableError(str(error)) from error
            ring.graphs.append(graph)
            ring.launches.append(len(turns))
    return ring


def _abort(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed, so that the process can go on."""
    with suppress(RuntimeError):
        graph.capture_end()
    torch.cuda.synchronize()


@cache
def settle() -> tuple[torch.cuda.CUDAGraph, ...]:
    """Make the graphs that bring a process into the mode in which it stays; they are kept.

    On an H200 (driver 580.159), launches of a process's graphs overlapped a little until it had made its
    fourth graph: 3.42 us a launch before, 3.80 us for the very same graph ever after, where CUPTI gave
    3.46 us for the kernel alone. A number must not depend on how many graphs were made before it.
    """
    x = torch.zeros(1, device="cuda")
    graphs = tuple(torch.cuda.CUDAGraph() for _ in range(SETTLING_GRAPHS))
    with torch.cuda.stream(_capturing()):
        for graph in graphs:
            graph.capture_begin(capture_error_mode="thread_local")
            x.add_(1)
            graph.capture_end()
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    return graphs


@cache
def _pool() -> tuple[int, int]:
    """Memory that all captures of this process share, one after the other: what a graph's launches wrote to is
    not given back to the device when the graph is gone, for the device clears freed memory in the
    background, which slows whatever is timed meanwhile."""
    pool: tuple[int, int] = torch.cuda.graph_pool_handle()
    # A pool lives as long as one graph that was captured into it.
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capturing()):
        keeper.capture_begin(pool, capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        keeper.capture_end()
    _KEEPERS.append(keeper)
    return pool


def release() -> None:
    """Give the memory of earlier captures back to the device. No graph may be in use."""
    _KEEPERS.clear()
    _pool.cache_clear()
    torch.cuda.empty_cache()


@cache
def _capturing() -> torch.cuda.Stream:
    """The stream that is captured; the default one can't be."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
