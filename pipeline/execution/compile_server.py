"""The process that compiles ahead: imports torch and Triton once and forks itself for each core it may use.

Started by ``compile_pool``, below a warden, as ``python -m pipeline.execution.compile_server FD CAPABILITY
JOBS``; FD is its end of a socket pair. It is told points, and answers with each as it is compiled.

It holds no CUDA context: every launch ends once its kernel is compiled, and the tensors have no data. The
specialization is that of the later launch on aligned data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import kernels
from pipeline.execution.offline import compile_for, compile_point, only_compile
from pipeline.execution.protocol import Compiled, Wanted, receive, send
from pipeline.machine.process import die_with
from pipeline.points import problems
from pipeline.points.point import Point


class CompileForks:
    """Forks of this process that compile points, and the connection that is told of each."""

    def __init__(self, connection: Connection, jobs: int) -> None:
        self.connection = connection
        self._sending = Lock()
        self._pool = ProcessPoolExecutor(jobs, get_context("fork"), die_with, (os.getpid(),))

    def compile(self, wanted: Wanted) -> None:
        """Compile what the points launch.

        Points that differ only in their numbers share most kernels, so one of them goes first and the others
        follow when it is done, and cost little. Those that take longest are begun first.
        """
        kernel = kernels.load(wanted.where).kernel

        def weight(point: Point) -> float:
            provider = kernel.provider(point.provider)
            if provider.compile_weight is None or provider.parameters is None:
                return 0.0
            return provider.compile_weight(problems.make(provider.parameters, point.parameters))

        for group in sorted(alike(wanted.points), key=lambda group: -weight(group[0])):
            self._submit(wanted.where, group[:1], then=group[1:])

    def _submit(self, where: str, points: list[Point], then: list[Point]) -> None:
        def finish(done: Future[None]) -> None:
            # An error is not looked at: the launch itself will meet and report it.
            with self._sending, suppress(OSError):
                send(self.connection, Compiled(points=tuple(points)))
            if then:
                self._submit(where, then, then=[])

        self._pool.submit(_compile, where, points).add_done_callback(finish)


def alike(points: Sequence[Point]) -> list[list[Point]]:
    """The points in groups of those that differ in the numbers of their problems alone."""
    groups: dict[object, list[Point]] = {}
    for point in points:
        words = frozenset((n, v) for n, v in point.problem.items() if isinstance(v, (str, bool)))
        groups.setdefault((point.provider, words, point.parameters), []).append(point)
    return list(groups.values())


def _build_launcher(compiled: Any) -> None:
    """Build the C code that a first launch needs, which takes it a second: Triton keeps it in the same cache.

    It is Triton's own affair and differs from version to version. Where it can't be done, the launch does it.
    """
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _compile(where: str, points: Sequence[Point]) -> None:
    for point in points:
        with suppress(Exception):
            compile_point(where, point)


def main(fd: int, capability: int, jobs: int) -> None:
    """Compile what is asked for until the other end closes."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    connection = Connection(fd)
    compile_for(capability)
    only_compile(_build_launcher)
    compilers = CompileForks(connection, jobs)
    while True:
        try:
            compilers.compile(receive(connection, Wanted))
        except (EOFError, ConnectionError):
            os._exit(0)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
