"""``bench(isolate=True)``: time a function in a worker process, and verify its outputs in another.

A sweep's worker and verifier do the work. To them the function is the only provider of a kernel in a
temporary folder, which names the files of the function, of ``make`` and of the reference. Only the worker
imports the function's file.
"""

from __future__ import annotations

import importlib.util
import inspect
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import torch

from . import known_ceilings
from .arguments import BenchError, Make, made, tensors_of, uuid_of
from .bench_result import BenchResult
from .checking import Tolerances, expect, tolerance_for, wide
from .contract import Kernel, Provider, Tolerance, Work
from .execution.supervisor import Supervisor
from .files import write_atomically
from .loading import Tensors
from .machine import device as devices
from .machine.device import Device
from .records.base import Record, Values
from .records.fields import Text
from .records.measurement import Outcome
from .records.point import Point
from .records.settings import TimingSettings
from .statistics.quantiles import median_interval
from .subject import Subject

TIMEOUT_S = 60.0
"""The time limit for a request to the worker, in seconds."""

PROVIDER, KERNEL = "function", "isolated"

FILES = {
    "__init__.py": '''"""A function that bench(isolate=True) times."""

from pathlib import Path

from kernel_pipeline.isolated import declared

kernel = declared(Path(__file__).parent)
''',
    "reference.py": '''"""Inputs and right answers."""

from pathlib import Path

from kernel_pipeline.isolated import IsolatedReference

_given = IsolatedReference(Path(__file__).parent)
inputs, outputs, reference = _given.inputs, _given.outputs, _given.reference
''',
    "provider.py": '''"""The function."""

from pathlib import Path

from kernel_pipeline.isolated import imported, read

function = imported(read(Path(__file__).parent).function)
''',
}


class ImportableFunction(Record):
    """A function's file and its name in the file, such as ``Class.method``."""

    file: Text
    name: Text


class IsolatedFiles(Record):
    """The content of the folder: the functions' addresses, the inputs' shapes, strides and dtypes, and the
    outputs' shapes, dtypes and tolerances ``(rtol, atol)``."""

    function: ImportableFunction
    make: ImportableFunction
    reference: ImportableFunction
    inputs: tuple[tuple[tuple[int, ...], tuple[int, ...], str], ...]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    tolerances: tuple[tuple[float, float], ...]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class IsolatedProblem:
    """A problem, whose only dimension is the number of bytes that a call moves."""

    bytes: int


def bench_isolated(
    function: Callable[..., Any] | str,
    make: Make | None,
    reference: Callable[..., Any] | None,
    tolerance: Tolerances,
    settings: TimingSettings,
    name: str | None,
) -> tuple[BenchResult, Subject]:
    """Time a function as a sweep does, with verification and an audit. ``function`` may be ``file.py:name``,
    a file that this process does not import. Raises BenchError if a function can't be imported from a file,
    and for a wrong output or a failed call.
    """
    if make is None or reference is None:
        raise BenchError(
            "isolate=True needs make= and reference=: another process makes the inputs and verifies outputs."
        )
    files = described(function, make, reference, tolerance)
    given = made(make, 0, None)
    title = name or files.function.name
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder, KERNEL)
        where.mkdir()
        for file, text in FILES.items():
            (where / file).write_text(text)
        write_atomically(where / "isolated.json", files.to_json())
        point = Point(kernel=KERNEL, provider=PROVIDER, problem=Values({"bytes": files.bytes}))
        device = given.tensors[0].device
        seed = secrets.randbelow(1 << 31)
        with Supervisor(_named(device), settings, seed, TIMEOUT_S, heeds_load=True) as supervisor:
            if device.type == "cuda":
                supervisor.canary = known_ceilings.of_device(device).canary or supervisor.rates()[0].canary
            outcome = supervisor.measure(str(where), point, is_audited=True)
    subject = Subject(title, lambda *_: None, given, lambda number: given.tensors, copies=False)
    return _result(title, device, outcome), subject


def described(
    function: Callable[..., Any] | str, make: Make, reference: Callable[..., Any], tolerance: Tolerances
) -> IsolatedFiles:
    """Return the content of the folder. Calls ``make`` and the reference, not the function."""
    addresses = [
        address(one, role) for one, role in ((function, ""), (make, "make="), (reference, "reference="))
    ]
    if addresses[0].file in (addresses[1].file, addresses[2].file):
        raise BenchError(
            f"{addresses[0].file} has both the function and make= or reference=: move the function to a file "
            "of its own. The process that verifies does not import that file."
        )
    arguments = made(make, 0, None)
    if not arguments.plain:
        raise BenchError("with isolate=True, make= must return only tensors.")
    right = tensors_of(arguments.call(reference)(*arguments.tensors))
    expected = expect(reference, arguments)
    allowed = [tolerance_for(x, want, tolerance) for x, want in zip(right, expected, strict=True)]
    return IsolatedFiles(
        function=addresses[0],
        make=addresses[1],
        reference=addresses[2],
        inputs=tuple((tuple(x.shape), x.stride(), str(x.dtype)) for x in arguments.tensors),
        outputs=tuple((tuple(x.shape), str(x.dtype)) for x in right),
        tolerances=tuple((one.rtol, one.atol) for one in allowed),
        bytes=sum(x.nbytes for x in (*arguments.tensors, *right)),
    )


def address(function: Callable[..., Any] | str, role: str) -> ImportableFunction:
    """Return the address by which another process can import a function. Raises BenchError if no file defines
    it."""
    if isinstance(function, str):
        file, _, name = function.rpartition(":")
        if not Path(file).is_file():
            raise BenchError(f"{function} names no file: write the function as path/to/file.py:name.")
        return ImportableFunction(file=str(Path(file).resolve()), name=name)
    name = getattr(function, "__qualname__", "")
    try:
        file = inspect.getsourcefile(inspect.unwrap(function)) or ""
    except TypeError:
        file = ""
    if not Path(file).is_file() or not name or "<" in name:
        shown = f"{role}{name or type(function).__name__}"
        raise BenchError(f"isolate=True can't import {shown}: define a function at the top of a file.")
    return ImportableFunction(file=str(Path(file).resolve()), name=name)


@cache
def _module(file: str) -> Any:
    """Import a file by its path. Modules beside it can be imported from it."""
    folder = str(Path(file).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"_isolated_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None, "a Python file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def imported(one: ImportableFunction) -> Callable[..., Any]:
    """Import a function. Raises whatever its file raises, and AttributeError if the file does not have the
    name."""
    found: Callable[..., Any] = reduce(getattr, one.name.split("."), _module(one.file))
    return found


@cache
def read(folder: Path) -> IsolatedFiles:
    """Return the content of a folder."""
    return IsolatedFiles.from_json((folder / "isolated.json").read_bytes())


def declared(folder: Path) -> Kernel:
    """Return the kernel that a folder declares."""
    files = read(folder)
    return Kernel(
        problem=IsolatedProblem,
        size=("bytes",),
        work=lambda problem: Work(problem.bytes, {}),
        tolerance=lambda problem: tuple(Tolerance(rtol=r, atol=a) for r, a in files.tolerances),
        providers=(Provider(PROVIDER, f"provider.py:{PROVIDER}", language="torch"),),
        baseline=PROVIDER,
    )


class IsolatedReference:
    """The inputs, outputs and right answers, computed by the user's ``make`` and reference."""

    def __init__(self, folder: Path) -> None:
        self.files = read(folder)

    def inputs(self, problem: IsolatedProblem, device: torch.device, seed: int) -> Tensors:
        """Return the inputs for a seed. On ``meta`` they have no values."""
        if device.type == "meta":
            return tuple(
                torch.empty_strided(shape, strides, dtype=_dtype(dtype), device=device)
                for shape, strides, dtype in self.files.inputs
            )
        return made(imported(self.files.make), seed, None).tensors

    def outputs(self, problem: IsolatedProblem) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        """Return the shape and dtype of each output."""
        return tuple((shape, _dtype(dtype)) for shape, dtype in self.files.outputs)

    def reference(self, *tensors: torch.Tensor) -> Tensors:
        """Return the right answers for inputs, computed in float64."""
        right = imported(self.files.reference)(*map(wide, tensors))
        return tuple(x.detach() for x in tensors_of(right))


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return found


def _named(device: torch.device) -> Device:
    if device.type == "cpu":
        return devices.cpu()
    return next(one for one in devices.gpus() if one.uuid == uuid_of(device))


def _result(title: str, device: torch.device, outcome: Outcome) -> BenchResult:
    timing, state = outcome.timing, outcome.state
    if timing is None:
        raise BenchError(f"{title} is {outcome.status.replace('_', ' ')}: {outcome.error}")
    low, high = median_interval(sorted(timing.samples_us))
    audit = (
        "not audited"
        if outcome.audit_ratio is None
        else f"an audit's time was {outcome.audit_ratio:.3g} of it"
    )
    large = ("the cache keeps a part of the usual ring of inputs, so the ring was larger",)
    doubts: Mapping[str, str | None] = {
        "": None if state is None or state.valid else state.invalid_reason,
        "any answer passes: ": outcome.any_answer,
    }
    why = "; ".join(f"{kind}{reason}" for kind, reason in doubts.items() if reason)
    return BenchResult(
        name=title,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        median_us=timing.median_us,
        interval=(max(0.0, low - timing.excess_us), high),
        samples_us=timing.samples_us,
        timer=timing.timer,
        cache=timing.cache,
        valid=not why,
        why=why,
        notes=(f"in processes of its own; {audit}", *large * timing.large_ring),
        state=state,
    )
