"""Compiling ahead: Triton variants go into Triton's on-disk cache before the GPU asks for them.

The pool's processes hold no CUDA context. A stub stands in for Triton's driver, every launch ends once
its kernel is compiled, and the tensors have no data. So a provider's own code decides what is compiled,
and the specialization is that of the later launch on aligned data.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

from kernels.point import Point
from pipeline.measure.device import cpu_threads
from pipeline.measure.process import die_with


class CompilePool:
    """Processes that compile Triton points for one compute capability. A context manager."""

    def __init__(self, capability: str) -> None:
        # Half of the cores: what takes longest is one large variant, and it should not share its core.
        jobs = max(1, min(8, cpu_threads() // 2))
        self._pool = ProcessPoolExecutor(
            jobs, get_context("spawn"), _prepare, (int(capability.replace(".", "")), os.getpid())
        )
        # A process of the pool starts with a task; these make all start now.
        for _ in range(jobs):
            self._pool.submit(_nothing)

    def submit(self, points: Sequence[Point]) -> dict[Point, Future[None]]:
        """Compile what the points launch; a future each, done when a launch would find its kernel compiled.

        Points that differ only in size share most kernels, so one of them goes first and the others follow
        when it is done, and cost little. Those that take longest, with the most elements a thread, are begun
        first.
        Errors stay in the future: the launch itself will meet and report them.
        """
        alike: dict[Point, list[Point]] = {}
        for point in points:
            alike.setdefault(replace(point, size=0), []).append(point)
        futures: dict[Point, Future[None]] = {}
        for first, *others in sorted(alike.values(), key=lambda group: -_elements_a_thread(group[0])):
            futures[first] = self._pool.submit(_compile, first)
            for other in others:
                futures[other] = self._after(futures[first], other)
        return futures

    def _after(self, earlier: Future[None], point: Point) -> Future[None]:
        later: Future[None] = Future()

        def finish(done: Future[None]) -> None:
            later.set_result(None)

        def submit(done: Future[None]) -> None:
            try:
                self._pool.submit(_compile, point).add_done_callback(finish)
            except RuntimeError:  # the pool is shut down: the sweep is over
                later.cancel()

        earlier.add_done_callback(submit)
        return later

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class StubDriver:
    """What a launch asks of Triton's driver before it compiles."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        """The only one there is."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Nothing runs on it."""
        return 0

    @property
    def utils(self) -> Any:
        """Triton's C helper, built on first use."""
        from triton.backends.nvidia.driver import CudaUtils

        return CudaUtils()

    def get_current_target(self) -> Any:
        """The GPU to compile for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def _prepare(capability: int, parent: int) -> None:
    """Make this process one that only compiles."""
    die_with(parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction, MockTensor

    driver.set_active(StubDriver(capability))
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        mocks = (MockTensor(arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        _build_launcher(run(self, *mocks, grid=grid, warmup=True, **options))

    JITFunction.run = compile_only


def _elements_a_thread(point: Point) -> float:
    return (point.block_size or 1024) / (32 * (point.num_warps or 4))


def _nothing() -> None:
    """A task that only needs its process to be there."""


def _build_launcher(compiled: Any) -> None:
    """Build the C code that a first launch needs, which takes it a second: Triton keeps it in the same cache.

    It is Triton's own affair and differs from version to version. Where it can't be done, the launch does it.
    """
    with suppress(Exception):
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def _compile(point: Point) -> None:
    import torch

    import kernels
    from kernels.contract import DTYPES

    kernel = kernels.load(point.kernel)
    meta = kernel.inputs(kernel.shape(point.size), DTYPES[point.dtype], torch.device("meta"), 0)
    kernel.provider(point.provider).call(*meta, **point.axes())
