"""Triton variants compiled for any architecture, on a host with or without a GPU, and taken apart.

A stub stands in for Triton's driver, and the launch ends once its kernel is compiled, so that a provider's
own code decides what is compiled. Processes of their own do it: no interpreter, no CUDA context.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing import active_children, get_context
from typing import Any

from kernels.point import Point

from pipeline import UserError
from pipeline.execution.offline import compile_for, only_compile
from pipeline.inspection.disassembler import Analysis, analyse_bytes
from pipeline.machine.device import cpu_threads
from pipeline.machine.process import die_with

TASKS_A_PROCESS = 4
"""Groups of points that are worth one more process, which takes as long to import torch and Triton."""


@dataclass(frozen=True)
class Program:
    """What one launch compiled to: its texts by kind (``ptx``, ``sass``, ``ttgir``), and the launch's threads
    a block and bytes of shared memory. ``identity`` is the same for the same code."""

    identity: str
    analysis: Analysis
    threads: int
    shared: int
    texts: dict[str, str]


@dataclass(frozen=True)
class Compiled:
    """A point for an architecture: the programs it launches, or why there are none."""

    point: Point
    architecture: str
    programs: tuple[Program, ...]
    error: str | None = None


def compile_points(points: Sequence[Point], architectures: Sequence[str]) -> Generator[Compiled, None, None]:
    """Compile each Triton point for each architecture, in parallel, until the generator is closed.

    Points that differ in their shape alone mostly share a program, so that one process gets all of them and
    takes each program apart once. Raises UserError when cuobjdump or nvdisasm is missing.
    """
    alike: dict[Point, list[Point]] = {}
    for point in points:
        alike.setdefault(replace(point, size=0, rows=None), []).append(point)
    tasks = [(group, architecture) for group in alike.values() for architecture in architectures]
    if not tasks:
        return
    jobs = min(cpu_threads(), 16, ceil(len(tasks) / TASKS_A_PROCESS))
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (os.getpid(),)) as pool:
        futures = [pool.submit(_compile, group, architecture) for group, architecture in tasks]
        try:
            for future in futures:
                yield from future.result()
        except BaseException:
            # The pool would wait for all that was asked for.
            for process in active_children():
                process.kill()
            raise


_launched: list[Any] = []
"""What the launches of the current point compiled to; a process of the pool compiles one point at a time."""


def _prepare(parent: int) -> None:
    """Make this process one that only compiles."""
    die_with(parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.pop("TRITON_INTERPRET", None)
    only_compile(_launched.append)


def _compile(points: Sequence[Point], architecture: str) -> list[Compiled]:
    import torch

    import kernels
    from kernels.contract import DTYPES

    compile_for(int(architecture))
    known: dict[str, Program] = {}
    found = []
    for point in points:
        kernel = kernels.load(point.kernel)
        shape = kernel.shape_of(point)
        provider = kernel.provider(point.provider)
        _launched.clear()
        if reason := provider.unsupported(point, shape):
            found.append(Compiled(point, architecture, (), reason))
            continue
        try:
            provider.call(*kernel.inputs(shape, DTYPES[point.dtype], torch.device("meta"), 0), **point.axes())
        except Exception as error:  # whatever a compiler may raise is this point's fate and no other's
            found.append(
                Compiled(point, architecture, (), " ".join(f"{type(error).__name__}: {error}".split())[:500])
            )
            continue
        programs = []
        for binary in _launched:
            identity = str(binary.metadata.hash)
            if identity not in known:
                known[identity] = _take_apart(binary, architecture)
            programs.append(known[identity])
        found.append(Compiled(point, architecture, tuple(programs)))
    return found


def _take_apart(binary: Any, architecture: str) -> Program:
    functions, sass = analyse_bytes(binary.asm["cubin"], architecture)
    ours = [function for function in functions if function.symbol == binary.metadata.name]
    if len(ours) != 1:
        raise UserError(f"the cubin of {binary.metadata.name} holds no function of that name.")
    return Program(
        identity=str(binary.metadata.hash),
        analysis=ours[0],
        threads=32 * binary.metadata.num_warps,
        shared=binary.metadata.shared,
        texts={"ptx": binary.asm["ptx"], "sass": sass, "ttgir": binary.asm["ttgir"]},
    )
