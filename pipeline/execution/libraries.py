"""The libraries of extensions, built while other things go on: all kernels' side by side."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from kernels import Loaded
from pipeline import UserError
from pipeline.machine.device import cpu_threads
from pipeline.store.record import Outcome
from pipeline.toolchain import extension, ninja_build
from pipeline.toolchain.extension import Place

NICENESS = 10
"""Of compilers beside which something is measured: who measures has a core when it wants one."""


class Libraries:
    """Builds in threads that wait for the compilers, which give way to others if ``gives_way``. A context
    manager; who leaves it waits for no compiler."""

    def __init__(self, gives_way: bool) -> None:
        self._threads = ThreadPoolExecutor(cpu_threads(), initializer=_give_way if gives_way else None)
        self._of: dict[tuple[str, str], Future[None]] = {}

    def submit(self, loaded: Loaded, sources: Iterable[str]) -> dict[str, Future[None]]:
        """Begin to build those of a kernel's sources that nobody has asked for before; a future each, which
        is done when the library is up to date. It raises UserError with the compiler's words if there will
        be none."""
        wanted = {source: (loaded.where, source) for source in sources}
        new = {source: Future[None]() for source, name in wanted.items() if name not in self._of}
        self._of |= {wanted[source]: future for source, future in new.items()}
        if new:
            self._threads.submit(_build, Place.of(loaded), new)
        return {source: self._of[name] for source, name in wanted.items()}

    def wait(self) -> None:
        """Until nothing is built any more."""
        wait(self._of.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not all(future.done() for future in self._of.values()):
            ninja_build.stop()
        self._threads.shutdown(cancel_futures=True)


def built(providers: Iterable[tuple[Loaded, str]]) -> dict[tuple[str, str], Outcome]:
    """Build the extensions that some kernels' providers need; the outcome by kernel and provider of those
    that fail."""
    broken = {}
    for loaded, name in {(loaded.name, name): (loaded, name) for loaded, name in providers}.values():
        source = loaded.kernel.provider(name).extension
        if source is None:
            continue
        try:
            extension.build(Place.of(loaded), [source])
        except UserError as error:
            broken[loaded.name, name] = Outcome(status="compile_error", error=str(error))
    return broken


def _give_way() -> None:
    # Of this thread alone, and of what it starts.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _build(place: Place, futures: Mapping[str, Future[None]]) -> None:
    """Build them at once; if that fails, one by one, to tell which of them it is."""
    try:
        extension.build(place, list(futures))
    except UserError as error:
        if len(futures) > 1:
            for source, future in futures.items():
                _build(place, {source: future})
            return
        _settle(futures, error)
    except BaseException as error:  # who waits for it has to hear of it, whatever it is
        _settle(futures, error)
    else:
        _settle(futures, None)


def _settle(futures: Mapping[str, Future[None]], error: BaseException | None) -> None:
    for future in futures.values():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
