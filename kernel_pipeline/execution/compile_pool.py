"""Compile ahead of the measurements: Triton kernels into Triton's on-disk cache, and libraries."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any, Self

from ..contract import Provider
from ..errors import UserError
from ..loading import Loaded
from ..machine.device import cpu_threads
from ..machine.reaper import WITHOUT_PLUGINS, under_reaper
from ..records.credentials import without_tracker
from ..records.measurement import Outcome
from ..records.point import Point
from ..toolchain import extension, inductor, ninja_build
from ..toolchain.extension import Place
from .message_connection import receive, send
from .protocol import Compiled, Wanted


class CompilePool:
    """Compiles Triton points for one compute capability in processes of its own. A context manager.

    The processes start with the pool, so that they are ready when the first points are known (see
    ``compile_server``).
    """

    def __init__(self, capability: str) -> None:
        # Half of the cores: one large kernel takes longest, and it should not share its core.
        jobs = max(1, cpu_threads() // 2)
        ours, theirs = socket.socketpair()
        fd = theirs.fileno()
        words = [fd, capability.replace(".", ""), jobs]
        # Below a reaper: without it an assembler started by a compiler would outlive a killed pool.
        self._process = subprocess.Popen(
            under_reaper(
                [sys.executable, "-m", "kernel_pipeline.execution.compile_server", *map(str, words)]
            ),
            pass_fds=[fd],
            env=WITHOUT_PLUGINS | without_tracker(os.environ) | inductor.caches(),
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
        """Begin to compile the Triton kernels that points of the kernel ``where`` launch.

        Returns a future for each point. It is done when the compilation has ended, also if that failed: then
        the launch compiles.
        """
        futures: dict[Point, Future[None]] = {point: Future() for point in points}
        with self._lock:
            is_dead = self._is_dead
            self._compiling |= {} if is_dead else futures
        if is_dead:
            _finish(futures.values())
            return futures
        with suppress(ConnectionError):  # the server is dead; the reader's thread notices
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

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._connection.close()


class Compilers:
    """The compilers of this host, for all kernels of a sweep.

    It is a context manager. Its exit stops the compilers; without an exception it waits for Inductor's trial.

    Libraries are built at once. Triton points are compiled by one pool, which starts with the first of them.
    Without a GPU to compile for, ``capability`` is None and no Triton point is compiled.
    """

    def __init__(self, capability: str | None) -> None:
        self.capability = capability
        self._stack = ExitStack()
        self._pool: CompilePool | None = None
        self._libraries = self._stack.enter_context(Libraries(gives_way=capability is not None))
        self._trial = self._stack.enter_context(ExitStack())
        self._is_trying = False

    def begin(self, loaded: Loaded, providers: Iterable[Provider]) -> dict[str, Future[None]]:
        """Begin to build the libraries that providers need. Returns a future for each, by source.

        Before Inductor's first kernel for a CPU, begin its trial of the CPU's instruction sets.
        """
        needed = list(providers)
        if self.capability is None and not self._is_trying and any(one.compiled for one in needed):
            self._is_trying = True
            if not inductor.is_tried():
                self._trial.enter_context(inductor.trying())
        return self._libraries.submit(loaded, dict.fromkeys(one.extension for one in needed if one.extension))

    def submit(self, where: str, points: Sequence[Point]) -> dict[Point, Future[None]]:
        """Begin to compile points, as ``CompilePool.submit``. Points submitted first are compiled first."""
        assert self.capability is not None, "nothing is compiled ahead without a GPU to compile for"
        if self._pool is None:
            self._pool = self._stack.enter_context(CompilePool(self.capability))
        return self._pool.submit(where, points)

    def wait(self) -> None:
        """Wait until all libraries are built and the trial is over."""
        self._libraries.wait()
        self._trial.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool = None
        self._stack.__exit__(*error)


class Ahead:
    """Compiles one kernel's points ahead, by compilers that other kernels share.

    ``futures`` has a future for each point that is compiled ahead. It is done when the point can be measured,
    and raises UserError if the point can't be measured.
    """

    def __init__(self, loaded: Loaded, compilers: Compilers) -> None:
        self.futures: dict[Point, Future[None]] = {}
        self._loaded = loaded
        self._compilers = compilers

    def is_of(self, point: Point) -> bool:
        """Whether a point's own kernels are compiled ahead, as Triton's are."""
        return self._compilers.capability is not None and self._provider(point).compiles_ahead

    def begin(self, points: Iterable[Point]) -> None:
        """Begin to build the sources that the points' providers need."""
        self._compilers.begin(
            self._loaded, {point.provider: self._provider(point) for point in points}.values()
        )

    def submit(self, points: Iterable[Point]) -> None:
        """Begin to compile the points that are compiled ahead, and add their futures."""
        new = [point for point in points if point not in self.futures]
        if wanted := [point for point in new if self.is_of(point)]:
            self.futures |= self._compilers.submit(self._loaded.where, wanted)
        of_libraries = [point for point in new if self._provider(point).extension]
        libraries = self._compilers.begin(self._loaded, map(self._provider, of_libraries))
        for point in of_libraries:
            self.futures[point] = libraries[str(self._provider(point).extension)]

    def _provider(self, point: Point) -> Provider:
        return self._loaded.kernel.provider(point.provider)


def _finish(futures: Iterable[Future[None]]) -> None:
    for future in futures:
        future.set_result(None)


NICENESS = 10
"""The niceness of compilers that run beside measurements, so that measurements get a core when they need
one."""


class Libraries:
    """Builds libraries in threads that wait for the compilers. A context manager whose exit stops them.

    With ``gives_way`` the compilers run at a lower priority.
    """

    def __init__(self, gives_way: bool) -> None:
        self._threads = ThreadPoolExecutor(cpu_threads(), initializer=_give_way if gives_way else None)
        self._of: dict[tuple[str, str], Future[None]] = {}

    def submit(self, loaded: Loaded, sources: Iterable[str]) -> dict[str, Future[None]]:
        """Begin to build the kernel's sources that were not submitted before.

        Returns a future for each source. It is done when the library is up to date, and raises UserError with
        the compiler's message if the build failed.
        """
        wanted = {source: (loaded.where, source) for source in sources}
        new = {source: Future[None]() for source, name in wanted.items() if name not in self._of}
        self._of |= {wanted[source]: future for source, future in new.items()}
        if new:
            self._threads.submit(_build, Place.for_kernel(loaded), new)
        return {source: self._of[name] for source, name in wanted.items()}

    def wait(self) -> None:
        """Wait until all libraries are built."""
        wait(self._of.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not all(future.done() for future in self._of.values()):
            ninja_build.stop()
        self._threads.shutdown(cancel_futures=True)


def built(providers: Iterable[tuple[Loaded, str]]) -> dict[tuple[str, str], Outcome]:
    """Build the extensions that providers need.

    Returns the outcomes of providers whose build failed, by kernel and provider.
    """
    broken = {}
    for loaded, name in {(loaded.name, name): (loaded, name) for loaded, name in providers}.values():
        source = loaded.kernel.provider(name).extension
        if source is None:
            continue
        try:
            extension.build(Place.for_kernel(loaded), [source])
        except UserError as error:
            broken[loaded.name, name] = Outcome(status="compile_error", error=str(error))
    return broken


def _give_way() -> None:
    # Linux sets the priority of this thread only, and of the processes that it starts.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _build(place: Place, futures: Mapping[str, Future[None]]) -> None:
    """Build all sources at once; if that fails, one by one, to find the sources that fail."""
    try:
        extension.build(place, list(futures))
    except UserError as error:
        if len(futures) > 1:
            for source, future in futures.items():
                _build(place, {source: future})
            return
        _settle(futures, error)
    except BaseException as error:  # a thread waits for the future: any error has to reach it
        _settle(futures, error)
    else:
        _settle(futures, None)


def _settle(futures: Mapping[str, Future[None]], error: BaseException | None) -> None:
    for future in futures.values():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
