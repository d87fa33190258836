"""Record what a call runs on the GPU: its device operations, and the machine code of its kernels.

``python -m pipeline.inspection.device_code`` reads a ``CodeQuestion`` and prints ``CodeAnswers``; ``ask``
runs it in a side's tree. Equal records mean that two calls launch the same kernels, copies and memsets of the
same sizes, and that the kernels have the same machine code. A record holds the scalar arguments of a launch
for Triton and Gluon, not for CUDA.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kernel_pipeline import loading
from kernel_pipeline.contract import Kernel
from kernel_pipeline.execution.fork_server import Root, placed
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.point import Point
from kernel_pipeline.toolchain.extension import Place
from kernel_pipeline.toolchain.resources import resources

from ..verdicts.rounds import Match
from .disassembler import find_tools
from .launches import whole
from .library import architecture_of, known_name
from .profiler import LAUNCHING, ON_DEVICE

LANGUAGES = ("triton", "gluon", "cuda")
"""The languages for which the machine code of a kernel can be read."""

OF_TORCH = re.compile(r"\bat::(native|cuda)::")
"""Kernels inside torch's own library, which is the same on both sides if its version is."""

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
    """The record of each point, or None if it is not known."""

    each: tuple[DeviceCode | None, ...]


def ask(root: Path | Root, question: CodeQuestion) -> list[DeviceCode | None]:
    """Let a process in the tree at ``root`` make the records of points there, and return the records. All
    records are None if the process fails."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        **placed(root, os.environ),
        input=question.to_json().decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [None] * len(question.points)
    return list(CodeAnswers.from_json(done.stdout.splitlines()[-1]).each)


def same(matches: Sequence[Match], kernel: Kernel, device: str, seed: int) -> set[Match]:
    """Return the matches of a kernel whose two sides are known to run the same code on a GPU."""
    known = [
        one for one in matches if kernel.provider(one.candidates[0].point.provider).language in LANGUAGES
    ]
    if not known:
        return set()
    both = []
    for number, side in enumerate(one.side for one in known[0].candidates):
        points = tuple(one.candidates[number].point for one in known)
        both.append(ask(side.root, CodeQuestion(where=side.where, device=device, seed=seed, points=points)))
    return {match for match, a, b in zip(known, *both, strict=True) if a is not None and a == b}


def operations(trace: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the device operations in a Chrome trace of one call: kernels with registers, grid, block and
    shared memory; copies and memsets with bytes. Returns None if CUPTI lost an operation."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    found = sorted((one for one in events if one.get("cat") in ON_DEVICE), key=lambda one: float(one["ts"]))
    called = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in LAUNCHING
        and re.search(r"Launch\w*Kernel|LaunchCooperative|Memcpy|Memset", event["name"])
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

    def keep(compiled: Any, grid: object, arguments: Sequence[object]) -> None:
        name = compiled.metadata.name
        scalars.append(f"{name} {[one for one in arguments if isinstance(one, (int, float, str))]}")
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        made: dict[str, Any] = json.loads(whole(path.read_bytes()))
        return made


def answer(question: CodeQuestion) -> Sequence[DeviceCode | None]:
    """Return the record of each point, or None for a point that fails: the rounds report the failure."""
    import torch

    torch.cuda.set_device(torch.device(question.device))
    traced(lambda: torch.zeros(1, device="cuda"))  # the first profile of a process loses records
    found: list[DeviceCode | None] = []
    for point in question.points:
        try:
            found.append(record(question.where, point, question.seed))
        except Exception:  # a provider may raise anything
            found.append(None)
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    print(CodeAnswers(each=tuple(answer(CodeQuestion.from_json(sys.stdin.read())))).to_json().decode())
