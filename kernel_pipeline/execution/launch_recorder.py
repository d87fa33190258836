"""Record the CUDA kernels that a call launches, so that no name has to be guessed from a profile.

A library built here reports its launches itself (``kernels/include/launch_record.h``). For Triton and Gluon
the compiled kernel has all facts. For Numba the method that launches is patched.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..records.measurement import Launch
from .instance import Instance


@contextmanager
def recorded(instance: Instance) -> Iterator[Callable[[], tuple[Launch, ...] | None]]:
    """Record the launches of the instance's calls within the context.

    Yields a function that returns the launches after the context, or None if the provider reports none.
    """
    found: list[Launch] = []
    if instance.library is not None and instance.provider.language == "cuda":
        record, recorded = _reporting(instance.library)
        record(1)
        try:
            yield lambda: tuple(found) or None
        finally:
            record(0)
            found += [Launch.from_dict(one) for one in json.loads(recorded())]
    elif instance.provider.language in ("triton", "gluon"):
        with triton_launches(lambda compiled, grid, arguments: found.append(_launch(compiled, grid))):
            yield lambda: tuple(found) or None
    elif instance.provider.language == "numba":
        with _numba(found):
            yield lambda: tuple(found) or None
    else:
        yield lambda: None


def _reporting(library: Path) -> tuple[Callable[[int], None], Callable[[], bytes]]:
    """Return the library's functions to record and to report, or stubs that report nothing."""
    loaded = ctypes.CDLL(str(library))
    try:
        record, recorded = loaded.kernels_record_launches, loaded.kernels_recorded_launches
    except AttributeError:
        return lambda on: None, lambda: b"[]"
    recorded.restype = ctypes.c_char_p
    return record, recorded


@contextmanager
def triton_launches(report: Callable[[Any, Any, dict[str, Any]], None]) -> Iterator[None]:
    """Call ``report`` with the compiled kernel, the grid and the arguments by name of each launch by Triton
    within the context."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def run_and_record(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launched: list[Any] = [grid]

        def seen(meta: Any) -> Any:
            launched[0] = grid(meta)
            return launched[0]

        compiled = run(self, *args, grid=seen if callable(grid) else grid, warmup=warmup, **options)
        if not warmup and compiled is not None:
            report(compiled, launched[0], dict(zip(self.arg_names, args, strict=False)) | options)
        return compiled

    JITFunction.run = run_and_record
    try:
        yield
    finally:
        JITFunction.run = run


@contextmanager
def _numba(found: list[Launch]) -> Iterator[None]:
    from numba.cuda.core import config

    if config.ENABLE_CUDASIM:  # nothing is launched
        yield
        return
    from numba.cuda.dispatcher import _Kernel

    launch = _Kernel.launch

    def launch_and_record(
        self: Any, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
    ) -> None:
        launch(self, args, griddim, blockdim, stream, sharedmem)
        found.append(
            Launch(function=self.py_func.__name__, grid=griddim, block=blockdim, shared_bytes=sharedmem)
        )

    _Kernel.launch = launch_and_record
    try:
        yield
    finally:
        _Kernel.launch = launch


def _launch(compiled: Any, grid: Any) -> Launch:
    metadata = compiled.metadata
    blocks = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    return Launch(
        function=metadata.name,
        grid=(*(int(n) for n in blocks), 1, 1)[:3],
        block=(32 * metadata.num_warps, 1, 1),
        cluster=tuple(getattr(metadata, "cluster_dims", (1, 1, 1))),
        shared_bytes=metadata.shared,
        stages=getattr(metadata, "num_stages", 0),
    )
