"""Compiling ahead: Triton variants go into Triton's on-disk cache before the GPU asks for them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from types import TracebackType
from typing import Self

from kernels import Loaded
from pipeline.execution.protocol import Compiled, Wanted, receive, send
from pipeline.machine.device import cpu_threads
from pipeline.machine.process import under_warden
from pipeline.points.point import Point


class CompilePool:
    """Compiles Triton points for one compute capability in processes of its own. A context manager.

    These start with the pool, so that they are ready when the first points are known (see
    ``compile_server``).
    """

    def __init__(self, capability: str) -> None:
        # Half of the cores: what takes longest is one large variant, and it should not share its core.
        jobs = max(1, cpu_threads() // 2)
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        words = [fd, capability.replace(".", ""), jobs]
        # Through a warden: an assembler that a compiler has started would outlive a pool that is killed.
        self._process = subprocess.Popen(
            under_warden([sys.executable, "-m", "pipeline.execution.compile_server", *map(str, words)]),
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._compiling: dict[Point, Future[None]] = {}
        self._is_dead = False
        self._lock = Lock()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def submit(self, where: str, points: Sequence[Point]) -> dict[Point, Future[None]]:
        """Compile what points of the kernel that ``where`` names launch; a future each, done when a launch
        would find its kernel compiled or would have to compile it itself."""
        futures: dict[Point, Future[None]] = {point: Future() for point in points}
        with self._lock:
            is_dead = self._is_dead
            self._compiling |= {} if is_dead else futures
        if is_dead:
            _finish(futures.values())
            return futures
        with suppress(ConnectionError):  # it is dead; the reader sees that
            send(self._connection, Wanted(where=where, points=tuple(points)))
        return futures

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                points = receive(self._connection, Compiled).points
                with self._lock:
                    done = [self._compiling.pop(point) for point in points]
                _finish(done)
        with self._lock:
            self._is_dead = True
            rest = list(self._compiling.values())
        _finish(rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._connection.close()


class Compilers:
    """What compiles ahead on this host, for all kernels of a sweep: one pool, which starts with the first
    point that is compiled ahead. A context manager.

    Nothing is without a GPU to compile for: ``capability`` is then None.
    """

    def __init__(self, capability: str | None) -> None:
        self.capability = capability
        self._stack = ExitStack()
        self._pool: CompilePool | None = None

    def submit(self, where: str, points: Sequence[Point]) -> dict[Point, Future[None]]:
        """As a pool's; points that are submitted first are begun first."""
        assert self.capability is not None, "nothing is compiled ahead without a GPU to compile for"
        if self._pool is None:
            self._pool = self._stack.enter_context(CompilePool(self.capability))
        return self._pool.submit(where, points)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool = None
        self._stack.close()


class Ahead:
    """What is compiled ahead of one kernel's points, by compilers that other kernels share."""

    def __init__(self, loaded: Loaded, compilers: Compilers) -> None:
        self.futures: dict[Point, Future[None]] = {}
        self._loaded = loaded
        self._compilers = compilers

    def is_of(self, point: Point) -> bool:
        """Whether a point is compiled ahead."""
        provider = self._loaded.kernel.provider(point.provider)
        return self._compilers.capability is not None and provider.compiles_ahead

    def submit(self, points: Iterable[Point]) -> None:
        """Begin to compile those of the points that are compiled ahead, and add their futures."""
        wanted = [point for point in points if point not in self.futures and self.is_of(point)]
        if wanted:
            self.futures |= self._compilers.submit(self._loaded.where, wanted)


def _finish(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.set_result(None)
