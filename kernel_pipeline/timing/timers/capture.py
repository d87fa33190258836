"""Calls captured into CUDA graphs that together go round all input sets."""

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
"""Launches in a graph at most, so that what a turn costs besides them is known however large its ring is."""

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
    with torch.cuda.stream(_capturing(torch.cuda.current_device())):
        for first in range(0, total, MOST_LAUNCHES):
            # Not through torch.cuda.graph: it collects garbage and empties the allocator's cache first,
            # which takes longer than all the rest.
            graph = torch.cuda.CUDAGraph()
            # No collector's run may free what can't be freed while a stream is captured: memory of another
            # process that was mapped here, say.
            collects = gc.isenabled()
            gc.disable()
            graph.capture_begin(_pool(torch.cuda.current_device())[0], capture_error_mode="thread_local")
            try:
                for turn in range(first, min(first + MOST_LAUNCHES, total)):
                    # The previous output of this set is let go, so that memory does not grow with turns.
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
    """End a capture that failed, so that the process can go on."""
    with suppress(RuntimeError):
        graph.capture_end()
    torch.cuda.synchronize()
    # The allocator goes on taking the pool for one that is captured into, and the default generator goes on
    # refusing random numbers: a capture that ends well sets both right.
    _pool.cache_clear()
    _pool(torch.cuda.current_device())


@cache
def _pool(device: int) -> tuple[Any, torch.cuda.CUDAGraph]:
    """Memory that all captures of this process on a GPU share, one after the other, and what keeps it alive.

    So what a graph's launches wrote to is not given back to the device when the graph is gone. A device
    clears freed memory in the background: on an H200 that slowed a square that was timed meanwhile by 9 %.
    """
    pool = torch.cuda.graph_pool_handle()
    # A pool lives as long as one graph that was captured into it.
    keeper = torch.cuda.CUDAGraph()
    with torch.cuda.stream(_capturing(device)):
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
def _capturing(device: int) -> torch.cuda.Stream:
    """The stream of a GPU that is captured; the default one can't be."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
