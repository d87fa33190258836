"""Record what a call runs on the GPU: its device operations, and the machine code of its kernels.

``python -m pipeline.inspection.device_code`` reads lines of ``CodeQuestion``, and prints ``CodeAnswers``;
``same`` runs it in both sides' trees. Equal records mean that two calls launch the same kernels, copies and
memsets of the same sizes, and that the kernels have the same machine code. A record holds the scalar
arguments of a launch for Triton and Gluon, not for CUDA.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from kernel_pipeline import loading
from kernel_pipeline.contract import Kernel
from kernel_pipeline.execution.compile_pool import CompilePool
from kernel_pipeline.execution.fork_server import Root
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain.extension import Place
from kernel_pipeline.toolchain.resources import resources

from ..execution.side_process import SideProcess, as_lines
from ..verdicts.rounds import Match, Side
from .disassembler import find_tools
from .launches import spans, trace_of
from .library import architecture_of, known_name
from .profiler import LAUNCHING, ON_DEVICE

LANGUAGES = ("triton", "gluon", "cuda")
"""The languages for which the machine code of a kernel can be read."""

OF_TORCH = re.compile(r"\bat::(native|cuda)::")
"""Kernels inside torch's own library, which is the same on both sides if its version is."""

ANSWER = "answer: "
"""The beginning of a line with an answer: providers may print other lines."""

CODE = re.compile(r"\.(?:text|nv\.constant[1-9]\d*|nv\.global\.init)(?:\.(.*))?")
"""Matches the name of a cubin's section with instructions or constants. The group is the section's
function."""


class CodeQuestion(Record):
    """Ask for the records of a kernel's points on a device."""

    where: str
    device: str
    seed: int
    points: tuple[Point, ...]


class DeviceCode(Record):
    """A call's device operations in order, and a digest of the machine code of each of its kernels."""

    operations: tuple[str, ...]
    code: dict[str, str]


class CodeAnswers(Record):
    """A line of the process's output: the record of each point of a question, or None if it is not known."""

    each: tuple[DeviceCode | None, ...]


Known = dict[Point, DeviceCode | None]
"""The records of points. A point that is missing has none."""


def same(kernels: Sequence[tuple[Kernel, Sequence[Match]]], device: str, seed: int) -> set[Match]:
    """Return those of the kernels' matches whose two sides are known to run the same code on a GPU. Both
    sides record at the same time."""
    asked = [dict[Side, list[Point]](), dict[Side, list[Point]]()]
    for kernel, matches in kernels:
        for match in matches:
            if kernel.provider(match.candidates[0].point.provider).language in LANGUAGES:
                for of, one in zip(asked, match.candidates, strict=True):
                    of.setdefault(one.side, []).append(one.point)
    questions = [
        [
            CodeQuestion(where=side.where, device=device, seed=seed, points=tuple(points))
            for side, points in of.items()
        ]
        for of in asked
    ]
    if not questions[0]:
        return set()
    roots = [next(iter(of)).root for of in asked]
    with ExitStack() as stack:
        begun = [stack.enter_context(begin(root, some)) for root, some in zip(roots, questions, strict=True)]
        known = [records(*one) for one in zip(roots, questions, begun, strict=True)]

    def is_same(match: Match) -> bool:
        a, b = (of.get(one.point) for of, one in zip(known, match.candidates, strict=True))
        return a is not None and a == b

    return {match for _, matches in kernels for match in matches if is_same(match)}


def begin(root: Path | Root, questions: Sequence[CodeQuestion]) -> SideProcess:
    """Begin to record points in the tree at ``root``. ``records`` returns the records."""
    return SideProcess(root, __name__, given=as_lines(questions))


def records(root: Path | Root, questions: Sequence[CodeQuestion], begun: SideProcess) -> Known:
    """Return the records of a process that was begun. If it dies, the kernel that it died of has none, and
    another process goes on with the next kernel."""
    done = begun.result()
    lines = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    found: Known = {}
    for question, line in zip(questions, lines, strict=False):
        answers = CodeAnswers.from_json(line.removeprefix(ANSWER))
        found |= dict(zip(question.points, answers.each, strict=True))
    if left := questions[len(lines) + bool(done.returncode) :]:
        with begin(root, left) as other:
            found |= records(root, left, other)
    return found


def operations(trace: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the device operations in a Chrome trace of one call: kernels with registers, grid, block and
    shared memory; copies and memsets with bytes. Returns None if CUPTI lost an operation."""
    found = sorted(spans(trace, ON_DEVICE), key=lambda one: float(one["ts"]))
    called = {
        event["args"]["correlation"]
        for event in spans(trace, LAUNCHING)
        if re.search(r"Launch\w*Kernel|LaunchCooperative|Memcpy|Memset", event["name"])
        and "correlation" in event.get("args", {})
    }
    if not found or called - {event["args"].get("correlation") for event in found}:
        return None
    sizes = ("registers per thread", "grid", "block", "shared memory", "bytes")
    return tuple(
        " ".join([event["name"], *(f"{name} {event['args'].get(name)}" for name in sizes)]) for event in found
    )


def kernels(trace: Mapping[str, Any]) -> list[str]:
    """Return the names of the kernels in a Chrome trace."""
    return [str(event["name"]) for event in trace["traceEvents"] if event.get("cat") == "kernel"]


def machine_code(cubin: bytes) -> dict[str, str]:
    """Return, by symbol, a digest of each kernel's instructions, constants and number of registers, and of
    the functions that kernels may call. The digest leaves out debug information and source lines."""
    kernels, own, shared = set[str](), list[tuple[str, bytes]](), list[bytes]()
    sections = list(_sections(cubin))
    for name, _, _ in sections:
        if name.startswith(".nv.constant0."):  # a kernel's parameters
            kernels.add(name.removeprefix(".nv.constant0."))
    for name, info, content in sections:
        if match := CODE.fullmatch(name):
            part = f"{name.removesuffix(match[1] or '')} {info >> 24}\n".encode() + content
            if match[1] in kernels:
                own.append((match[1], part))
            else:
                shared.append(part)
    return {
        name: hashlib.sha256(b"\0".join([*(part for of, part in own if of == name), *shared])).hexdigest()
        for name in sorted(kernels)
    }


def _sections(elf: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield the name, the info field and the content of each section of a 64-bit ELF file. The upper byte of
    the info field of a kernel's code is the kernel's number of registers."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", elf, start + size * number) for number in range(count)]
    for name, kind, _, _, offset, length, _, info in headers:
        begin = headers[names][4] + name
        text = elf[begin : elf.index(b"\0", begin)].decode()
        yield (
            text,
            info,
            b"" if kind == 8 else elf[offset : offset + length],
        )  # type 8 is SHT_NOBITS: the section has no content in the file


@cache
def of_library(where: str, source: str, library: Path, architecture: str) -> dict[str, str]:
    """Return the digests of the functions in a kernel's CUDA library for an architecture, by the functions'
    names in traces."""
    loaded = loading.load(where)
    names = {row.symbol: known_name(row.function) for row in resources(Place.for_kernel(loaded), source)}
    with tempfile.TemporaryDirectory() as folder:
        cubins, _ = find_tools().extract(library, Path(folder))
        (cubin,) = (path for path in cubins if architecture_of(path) == architecture)
        return {names[symbol]: code for symbol, code in machine_code(cubin.read_bytes()).items()}


def record(where: str, point: Point, seed: int) -> DeviceCode | None:
    """Call a point on the current GPU, and return the record; None if any kernel's code is unknown."""
    import torch

    from kernel_pipeline.execution import instance
    from kernel_pipeline.execution.launch_recorder import recorded, triton_launches

    found = instance.standalone(where, point)
    inputs = found.inputs(torch.device("cuda"), seed)
    found.call(*inputs)  # compiles the kernels, so that the traced call launches them only
    code: dict[str, str] = {}
    if found.provider.language == "cuda" and found.library is not None:
        capability = "{}{}".format(*torch.cuda.get_device_capability())
        code |= of_library(where, str(found.provider.extension), found.library, capability)

    scalars: list[str] = []

    def keep(compiled: Any, grid: object, arguments: dict[str, object]) -> None:
        name = compiled.metadata.name
        scalars.append(f"{name} {[one for one in arguments.values() if isinstance(one, (int, float, str))]}")
        code[name] = f"{code.get(name, '')} {machine_code(compiled.asm['cubin'])[name]}".strip()

    with recorded(found) as report, triton_launches(keep):
        trace = traced(lambda: found.call(*inputs))
    listed = operations(trace)
    names = {name: name if name in code else known_name(name) for name in kernels(trace)}
    if listed is None or not all(of in code or OF_TORCH.search(name) for name, of in names.items()):
        return None
    return DeviceCode(
        operations=(*listed, *scalars, *(repr(launch) for launch in report() or ())),
        code={name: code.get(of, f"torch {torch.__version__}") for name, of in names.items()},
    )


def traced(call: Any) -> dict[str, Any]:
    """Return the Chrome trace of a call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    return trace_of(profiler)


def answer(questions: Sequence[CodeQuestion]) -> Iterator[CodeAnswers]:
    """Yield the answer to each question. A point that fails has no record: the rounds report the failure.

    Triton compiles the points ahead in other processes, on half of the cores, because the other side records
    at the same time. Ends after a question that broke the CUDA context.
    """
    import torch

    torch.cuda.set_device(torch.device(questions[0].device))
    with CompilePool("{}{}".format(*torch.cuda.get_device_capability())) as pool:
        compiling: dict[Point, Future[None]] = {}
        for question in questions:
            kernel = loading.load(question.where).kernel
            points = [one for one in question.points if kernel.provider(one.provider).compiles_ahead]
            compiling |= pool.submit(question.where, points)
        traced(lambda: torch.zeros(1, device="cuda"))  # the first profile of a process loses records
        for question in questions:
            found: list[DeviceCode | None] = []
            for point in question.points:
                if point in compiling:
                    compiling[point].result()
                try:
                    found.append(record(question.where, point, question.seed))
                except Exception:  # a provider may raise anything
                    found.append(None)
            yield CodeAnswers(each=tuple(found))
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                return
            torch.cuda.empty_cache()


if __name__ == "__main__":
    for one in answer([CodeQuestion.from_json(line) for line in sys.stdin]):
        print(f"{ANSWER}{one.to_json().decode()}", flush=True)
    # Without clean-up: after a device failure a normal exit may hang.
    os._exit(0)
