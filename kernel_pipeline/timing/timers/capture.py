"""Capture calls into CUDA graphs that together go round all input sets."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from time import sleep
from typing import Any

import torch

from ...loading import Tensors
from . import Rotation, spoil

MOST_LAUNCHES = 256
"""The maximum number of launches in a graph, so that the overhead per launch does not depend on the size of
the ring."""

CLEARING_BYTES_A_SECOND = 200e9
"""The lowest rate at which a device clears freed memory: an H200 took 88 ms for 32 GiB."""


class NotCapturableError(Exception):
    """A call that a graph can't capture, for example because it synchronizes or works on the host."""


@dataclass
class Ring:
    """Graphs that together go round all input sets once or several times, and the outputs that they write."""

    graphs: list[torch.cuda.CUDAGraph]
    launches: int
    outputs: list[Tensors | None]

    def turn(self) -> None:
        """Replay all graphs, which covers each input set at least once."""
        for graph in self.graphs:
            graph.replay()

    def again(self, in_place: bool, index: int) -> Tensors:
        """Replay the timed graphs once more, after overwriting the outputs of a set, and return these
        outputs. The outputs of an in-place call are its inputs and are not overwritten."""
        outputs = self.outputs[index]
        assert outputs is not None, "a ring holds outputs for each set"
        if not in_place:
            spoil(outputs)
        self.turn()
        return outputs


def capture(rotation: Rotation, launches: int) -> Ring:
    """Capture about ``launches`` calls that go round all input sets, each set equally often. An in-place call
    is captured once per set, so that a turn leaves the outputs of one call.

    Raises NotCapturableError if the call can't be captured.
    """
    sets = len(rotation.inputs)
    total = sets * (1 if rotation.in_place else max(1, round(launches / sets)))
    ring = Ring([], total, [None] * sets)
    rotation.outputs()
    torch.cuda.synchronize()
    with torch.cuda.stream(_capturing(torch.cuda.current_device())):
        for first in range(0, total, MOST_LAUNCHES):
            # torch.cuda.graph would first collect garbage and empty the allocator's cache, which takes longer
            # than the capture.
            graph = torch.cuda.CUDAGraph()
            # The garbage collector must not run: it could free memory that can't be freed during a capture,
            # such as memory mapped from another process.
            collects = gc.isenabled()
            gc.disable()
            graph.capture_begin(_pool(torch.cuda.current_device())[0], capture_error_mode="thread_local")
            try:
                for turn in range(first, min(first + MOST_LAUNCHES, total)):
                    # This drops the set's previous outputs, so that memory does not grow with turns.
                    ring.outputs[turn % sets] = rotation.outputs(turn % sets)
                graph.capture_end()
            except BaseException as error:
                _abort(graph)
                if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
                    raise NotCapturableError(str(error)) from error
                raise
            finally:
                if collects:
                    gc.enable()
            ring.graphs.append(graph)
    return ring


def _abort(graph: torch.cuda.CUDAGraph) -> None:
    """End a failed capture, so that the process can continue."""
    with suppress(RuntimeError):
        graph.capture_end()
    torch.cuda.synchronize()
    # After a failed capture the allocator still treats the pool as being captured into, and the default
    # generator still refuses random numbers. A successful capture resets both.
    _pool.cache_clear()
    _pool(torch.cuda.current_device())


@cache
def _pool(device: int) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Return the memory pool that all captures of this process on a GPU share, and the graph that keeps it
    alive.

    The shared pool keeps memory when a graph is destroyed. A device clears freed memory in the background,
    which slowed a simultaneously timed kernel on an H200 by 9 %.
    """
    pool = torch.cuda.graph_pool_handle()
    # A pool exists as long as a graph that was captured into it.
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capturing(device)):
        keeper.capture_begin(pool, capture_error_mode="thread_local")
        torch.zeros(1, device="cuda")
        keeper.capture_end()
    return pool, keeper


def release() -> None:
    """Free all unused device memory, including memory of earlier captures, and wait until the device has
    cleared it. No graph may be in use."""
    _pool.cache_clear()
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    sleep((before - torch.cuda.memory_reserved()) / CLEARING_BYTES_A_SECOND)


@cache
def _capturing(device: int) -> torch.cuda.Stream:
    """Return the stream to capture on a GPU; the default stream can't be captured."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
