"""Compiling ahead: Triton variants go into Triton's on-disk cache before the GPU asks for them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import Self

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
        self._futures: dict[Point, Future[None]] = {}
        self._reader = Thread(target=self._read, daemon=True)

    def submit(self, where: str, points: Sequence[Point]) -> dict[Point, Future[None]]:
        """Compile what points of the kernel that ``where`` names launch; a future each, done when a launch
        would find its kernel compiled or would have to compile it itself. Once a pool."""
        self._futures = {point: Future() for point in points}
        with suppress(ConnectionError):  # it is dead; the reader sees that
            send(self._connection, Wanted(where=where, points=tuple(points)))
        self._reader.start()
        return self._futures

    def _read(self) -> None:
        waiting = dict(self._futures)
        with suppress(EOFError, OSError):
            while waiting:
                for point in receive(self._connection, Compiled).points:
                    waiting.pop(point).set_result(None)
        for future in waiting.values():
            future.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        if self._reader.ident is not None:
            self._reader.join()
        self._connection.close()
