"""CUDA-graph replays: the default on a GPU, good from 1 us up.

A graph holds many launches, so the host is out of the picture: the device runs one after the other with
a gap of a few tenths of a microsecond. The launches go round the input sets, and their outputs lie apart, so
that every launch finds a cold cache where the sets together exceed it. An event stands between any two
turns of the ring; a sample is a turn's time over its launches, less the gap (see ``overhead``).
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from math import ceil
from time import perf_counter, sleep
from typing import Any

import torch

from kernels import Tensors
from pipeline.store.ceilings import NO_OVERHEAD, Overhead
from pipeline.timing.stopping import Stopping
from pipeline.timing.stopping.count import Count
from pipeline.timing.timers import Rotation, Samples, input_bytes, spoil
from pipeline.timing.timers.events import recorded

TURN_US = 800.0
"""A turn lasts about this long, or as long as the ring takes once. Ten turns are enough: on an H200 twelve
medians of 4 ms of samples spread over 1.1 to 1.5 % (softmax of 4096x1024), of 8 ms over 0.8 %."""

MOST_LAUNCHES = 256
"""Launches in a graph at most, so that what a turn costs besides them is known however large its ring is."""

WARM_UP_US = 500.0
"""Turns before the first sample: the first replay of a graph also uploads it."""

PILOT = 4
"""Launches in the graph that finds out how long one takes."""

SETTLING_MEASUREMENTS = 2
"""Twice as many as were seen to be needed."""

BATCH = 10
"""Turns between two looks at the samples."""

SETTLING_SHAPE = (360, 256, 256)
"""Sets in the ring, and the shape of each: 94 MB."""

CLEARING_BYTES_A_SECOND = 200e9
"""How fast a device clears memory that was given back to it, at least: an H200 took 88 ms for 32 GiB."""


class NotCapturableError(Exception):
    """The call does something that a graph can't hold: it synchronizes, or works on the host."""


@dataclass
class Ring:
    """Graphs that together go once or more round all input sets, and the outputs they write."""

    graphs: list[torch.cuda.CUDAGraph]
    launches: int
    outputs: list[Tensors | None]

    def turn(self) -> None:
        """Replay all graphs: each input set at least once."""
        for graph in self.graphs:
            graph.replay()

    def again(self, in_place: bool, index: int) -> Tensors:
        """A set's outputs as one more turn of the very graphs that were timed writes them, over memory that
        was spoilt; a call that is in place finds them in its inputs."""
        outputs = self.outputs[index]
        assert outputs is not None, "a ring holds outputs for each set"
        if not in_place:
            spoil(outputs)
        self.turn()
        return outputs


class GraphTimer:
    """Times replays of graphs that hold the rotation's calls."""

    def __init__(self, overhead: Overhead) -> None:
        self.overhead = overhead

    def measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        """Capture, warm up and sample. Raises NotCapturableError when the call can't be captured."""
        settle()
        return self._measure(rotation, stop)

    def _measure(self, rotation: Rotation, stop: Stopping) -> Samples:
        once_us = self._pilot(rotation)
        ring = capture(rotation, round(TURN_US / once_us))
        for _ in range(ceil(WARM_UP_US / (once_us * ring.launches))):
            ring.turn()
        samples: list[float] = []
        begin = perf_counter()
        while not stop.done(samples, perf_counter() - begin):
            # The device has gone idle since the last batch: the end of a turn fills its queue again.
            ring.graphs[-1].replay()
            events = [recorded()]
            for _ in range(BATCH):
                ring.turn()
                events.append(recorded())
            events[-1].synchronize()
            samples += [
                net(self.overhead, start.elapsed_time(end) * 1e3, ring.launches, len(ring.graphs))
                for start, end in pairwise(events)
            ]
        touched = input_bytes(rotation) + _output_bytes(rotation, ring)
        again = partial(ring.again, rotation.in_place)
        return Samples("graph", tuple(samples), rotation, again, touched, self.overhead.per_call_us)

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


def net(overhead: Overhead, time_us: float, launches: int, replays: int = 1) -> float:
    """Microseconds that each launch of one or more replays takes by itself. Never less than half of the gross
    time, so that a calibration gone wrong can't turn a time into nonsense unseen."""
    gross = time_us / launches
    return max((time_us - replays * overhead.per_replay_us) / launches - overhead.per_call_us, gross / 2)


def _output_bytes(rotation: Rotation, ring: Ring) -> int:
    """Bytes of all outputs that lie apart from each other and from the inputs."""
    inputs = {x.data_ptr() for set_ in rotation.inputs for x in set_}
    made = [out for outputs in ring.outputs for out in outputs or () if isinstance(out, torch.Tensor)]
    return sum({out.data_ptr(): out.nbytes for out in made if out.data_ptr() not in inputs}.values())


def capture(rotation: Rotation, launches: int) -> Ring:
    """Graphs of about ``launches`` calls that go round all input sets, each set as often as the others; once
    where a call writes over its inputs, so that a turn gives what one call does.

    Raises NotCapturableError when the call can't be captured.
    """
    sets = len(rotation.inputs)
    total = sets * (1 if rotation.in_place else max(1, round(launches / sets)))
    ring = Ring([], total, [None] * sets)
    rotation.outputs()
    torch.cuda.synchronize()
    with torch.cuda.stream(_capturing()):
        for first in range(0, total, MOST_LAUNCHES):
            # Not through torch.cuda.graph: it collects garbage and empties the allocator's cache first,
            # which takes longer than all the rest.
            graph = torch.cuda.CUDAGraph()
            # No collector's run may free what can't be freed while a stream is captured: memory of another
            # process that was mapped here, say.
            collects = gc.isenabled()
            gc.disable()
            graph.capture_begin(_pool()[0], capture_error_mode="thread_local")
            try:
                for turn in range(first, min(first + MOST_LAUNCHES, total)):
                    # The previous output of this set is let go, so that memory does not grow with turns.
                    ring.outputs[turn % sets] = rotation.outputs(turn % sets)
                graph.capture_end()
            except torch.OutOfMemoryError:
                _abort(graph)
                raise
            except RuntimeError as error:
                _abort(graph)
                raise NotCapturableError(str(error)) from error
            finally:
                if collects:
                    gc.enable()
            ring.graphs.append(graph)
    return ring


def _abort(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed, so that the process can go on."""
    with suppress(RuntimeError):
        graph.capture_end()
    torch.cuda.synchronize()
    # The allocator goes on taking the pool for one that is captured into.
    _pool.cache_clear()


@cache
def settle() -> None:
    """Measure something, to bring the process into the mode in which it stays.

    On an H200 (driver 580.159) the launches of a process's first measurement overlapped a little: 1.62 us a
    launch instead of 1.95 us in every later one of the same call, where CUPTI gave 1.57 us for the kernel
    alone. A number must not depend on how many were made before it.
    """
    for _ in range(SETTLING_MEASUREMENTS):
        inputs = tuple((x,) for x in torch.ones(SETTLING_SHAPE, device="cuda").unbind())
        GraphTimer(NO_OVERHEAD)._measure(Rotation(torch.neg, inputs), Count(BATCH))


@cache
def _pool() -> tuple[Any, torch.cuda.CUDAGraph]:
    """Memory that all captures of this process share, one after the other, and what keeps it alive.

    So what a graph's launches wrote to is not given back to the device when the graph is gone. A device
    clears freed memory in the background: on an H200 that slowed a square that was timed meanwhile by 9 %.
    """
    pool = torch.cuda.graph_pool_handle()
    # A pool lives as long as one graph that was captured into it.
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capturing()):
        keeper.capture_begin(pool, capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        keeper.capture_end()
    return pool, keeper


def release() -> None:
    """Give the device all memory back that nothing holds, that of earlier captures too, and wait until it has
    cleared it. No graph may be in use."""
    _pool.cache_clear()
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    sleep((before - torch.cuda.memory_reserved()) / CLEARING_BYTES_A_SECOND)


@cache
def _capturing() -> torch.cuda.Stream:
    """The stream that is captured; the default one can't be."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]
