"""The process that compiles ahead: it imports torch and Triton once, and forks itself for each of its jobs.

``compile_pool`` starts it below a reaper as ``python -m kernel_pipeline.execution.compile_server FD
CAPABILITY JOBS``; FD is its end of a socket pair. It gets points, and answers with each when it is compiled.

It holds no CUDA context: every launch ends once its kernel is compiled, and the tensors have no data. Kernels
are specialized as by a later launch on aligned data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import RLock
from typing import Any

from .. import loading, problems
from ..machine.reaper import die_with
from ..records.point import Point
from .message_connection import receive, send
from .offline import compile_for, compile_point, only_compile
from .protocol import Compiled, Wanted


@dataclass(frozen=True)
class CompileTask:
    """Points of a kernel that one process compiles. The points in ``then`` are compiled after these, at
    little cost."""

    where: str
    points: Sequence[Point]
    then: Sequence[Point] = ()


class CompileForks:
    """Compiles points in forks of this process, and reports each over the connection.

    Kernels are compiled in the order of their first requests, which is the order of a sweep: no point of a
    kernel waits for a point of a later kernel.
    """

    def __init__(self, connection: Connection, jobs: int) -> None:
        self.connection = connection
        # Reentrant: a future that is already done calls back at once, in this thread.
        self._lock = RLock()
        self._pool = ProcessPoolExecutor(jobs, get_context("fork"), die_with, (os.getpid(),))
        self._free = jobs
        self._kernels: dict[str, int] = {}
        self._places = count()
        self._waiting: list[tuple[int, bool, int, CompileTask]] = []

    def compile(self, wanted: Wanted) -> None:
        """Begin to compile the Triton kernels that the points launch.

        Points that differ only in the numbers of their problems share most Triton kernels, so one of them is
        compiled first. The others follow when it is done and a process is free, because they cost little. The
        points that take longest are begun first.
        """
        kernel = loading.load(wanted.where).kernel

        def weight(point: Point) -> float:
            provider = kernel.provider(point.provider)
            if provider.compile_weight is None or provider.parameters is None:
                return 0.0
            return provider.compile_weight(problems.make(provider.parameters, point.parameters))

        with self._lock:
            for group in sorted(alike(wanted.points), key=lambda group: -weight(group[0])):
                self._add(CompileTask(wanted.where, group[:1], group[1:]), is_first=True)
            self._begin()

    def _add(self, task: CompileTask, *, is_first: bool) -> None:
        number = self._kernels.setdefault(task.where, len(self._kernels))
        heappush(self._waiting, (number, is_first, next(self._places), task))

    def _begin(self) -> None:
        """Give each free process the next waiting task."""
        while self._free and self._waiting:
            *_, task = heappop(self._waiting)
            self._free -= 1
            try:
                future = self._pool.submit(_compile, task.where, task.points)
            except BrokenExecutor:
                os._exit(1)  # the launches compile the rest
            future.add_done_callback(partial(self._end, task))

    def _end(self, task: CompileTask, done: Future[None]) -> None:
        with self._lock:
            # The launch will raise the same error and report it.
            with suppress(OSError):
                send(self.connection, Compiled(points=tuple(task.points)))
            self._free += 1
            if task.then:
                self._add(CompileTask(task.where, task.then), is_first=False)
            self._begin()


def alike(points: Sequence[Point]) -> list[list[Point]]:
    """Group points that differ only in the numbers of their problems."""
    groups: dict[object, list[Point]] = {}
    for point in points:
        words = frozenset((n, v) for n, v in point.problem.items() if isinstance(v, (str, bool)))
        groups.setdefault((point.provider, words, point.parameters), []).append(point)
    return list(groups.values())


def _build_launcher(compiled: Any) -> None:
    """Build the C launcher of a Triton kernel into Triton's cache, for which a first launch takes a second.

    It uses internals of Triton that differ between versions. If it fails, the first launch does the same.
    """
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _compile(where: str, points: Sequence[Point]) -> None:
    for point in points:
        with suppress(Exception):
            compile_point(where, point)


def main(fd: int, capability: int, jobs: int) -> None:
    """Compile requested points until the other end closes."""
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
