"""The process that compiles ahead: imports torch and Triton once and forks itself for each core it may use.

Started by ``compiler`` as ``python -m pipeline.measure.compile_server FD PARENT CAPABILITY JOBS``; FD is its
end of a socket pair. It is told points, and answers with each as it is compiled.

It holds no CUDA context: every launch ends once its kernel is compiled, and the tensors have no data. The
specialization is that of the later launch on aligned data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from kernels.point import Point
from pipeline.measure.offline import compile_for, only_compile
from pipeline.measure.process import die_with


class Compilers:
    """Forks of this process that compile points, and the connection that is told of each."""

    def __init__(self, connection: Connection, jobs: int) -> None:
        self.connection = connection
        self._sending = Lock()
        self._pool = ProcessPoolExecutor(jobs, get_context("fork"), die_with, (os.getpid(),))

    def compile(self, points: Sequence[Point]) -> None:
        """Compile what the points launch.

        Points that differ only in their shape share most kernels, so one of them goes first and the others
        follow when it is done, and cost little. Those that take longest, with the most elements a thread, are
        begun first.
        """
        alike: dict[Point, list[Point]] = {}
        for point in points:
            alike.setdefault(replace(point, size=0, rows=None), []).append(point)
        for group in sorted(alike.values(), key=lambda group: -_elements_a_thread(group[0])):
            self._submit(group[:1], then=group[1:])

    def _submit(self, points: list[Point], then: list[Point]) -> None:
        def finish(done: Future[None]) -> None:
            # An error is not looked at: the launch itself will meet and report it.
            with self._sending, suppress(OSError):
                self.connection.send(points)
            if then:
                self._submit(then, then=[])

        self._pool.submit(_compile, points).add_done_callback(finish)


def _elements_a_thread(point: Point) -> float:
    return (point.block_size or 1024) / (32 * (point.num_warps or 4))


def _build_launcher(compiled: Any) -> None:
    """Build the C code that a first launch needs, which takes it a second: Triton keeps it in the same cache.

    It is Triton's own affair and differs from version to version. Where it can't be done, the launch does it.
    """
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _compile(points: Sequence[Point]) -> None:
    import torch

    import kernels
    from kernels.contract import DTYPES

    for point in points:
        with suppress(Exception):
            kernel = kernels.load(point.kernel)
            provider = kernel.provider(point.provider)
            shape = kernel.shape_of(point)
            # What no launch will ask for can be what takes the compiler minutes.
            if provider.unsupported(point, shape) is None:
                meta = kernel.inputs(shape, DTYPES[point.dtype], torch.device("meta"), 0)
                provider.call(*meta, **point.axes())


def main(fd: int, parent: int, capability: int, jobs: int) -> None:
    """Compile what is asked for until the other end closes."""
    die_with(parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    connection = Connection(fd)
    compile_for(capability)
    only_compile(_build_launcher)
    compilers = Compilers(connection, jobs)
    while True:
        try:
            compilers.compile(connection.recv())
        except (EOFError, ConnectionError):
            os._exit(0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
