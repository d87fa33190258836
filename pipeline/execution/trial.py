"""One point, from inputs to outcome, in this process: make inputs, run, verify, time, verify again."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import torch

import kernels
from kernels import Tensors
from kernels.contract import Tolerance
from pipeline.execution import instance, verification
from pipeline.execution.instance import Instance
from pipeline.execution.launch_recorder import recorded
from pipeline.execution.verification import Expected, Verdict
from pipeline.points.frozen import Values
from pipeline.points.point import Point
from pipeline.points.problems import values_of
from pipeline.store.ceilings import Overhead
from pipeline.store.record import Outcome, Status, Timing
from pipeline.timing.settings import TimingSettings
from pipeline.timing.statistics import quantile, relative_half_width
from pipeline.timing.stopwatch import Stopwatch
from pipeline.timing.timers import Rotation, Samples, checked_outputs, graph


@dataclass
class Prepared:
    """Inputs and the right answer of one kernel at one problem; shared by all its providers. ``bytes`` are
    those of all inputs and outputs."""

    inputs: Tensors
    copies: Tensors
    expected: Expected
    bytes: int


class Trial:
    """Runs points on one device of this process."""

    def __init__(self, device: str, settings: TimingSettings, seed: int) -> None:
        self.device = torch.device(device)
        self.settings = settings
        self.seed = seed
        self.stopwatch = Stopwatch(self.device, settings)
        self._prepared: tuple[tuple[str, Values], Prepared] | None = None

    def warm_up(self) -> None:
        """Do now what the first point would else wait for: the device's context, the code that verifies."""
        with ThreadPoolExecutor(1) as beside:
            if self.device.type == "cuda":
                beside.submit(_load_triton)
            x = torch.ones(8, device=self.device)
            verification.compare(x.square(), x.double(), x.dtype, Tolerance(rtol=0.0, atol=0.0))
            self.stopwatch.warm_up()

    def run(self, where: str, point: Point, overhead: Overhead) -> Outcome:
        """What happened at the point of the kernel that ``where`` names; ``overhead`` is what the graph timer
        takes off. Never raises for what a provider does short of ending the process."""
        self.stopwatch.overhead = overhead
        interpreted: Values | None = None

        def failed(status: Status, error: str) -> Outcome:
            # Whatever went wrong may have written where it should not; later points get fresh inputs.
            self._prepared = None
            return Outcome(status=status, error=without_colors(error), interpreted=interpreted)

        try:
            by_interpreter = self.device.type == "cpu" and self._is_interpreted(where, point)
            found = instance.of(where, point, by_interpreter)
            if by_interpreter and values_of(found.problem) != point.problem:
                interpreted = values_of(found.problem)
            if shortage := self._shortage(found):
                return failed("out_of_memory", shortage)
            with suppress(torch.OutOfMemoryError):
                return self._verify_and_time(found, interpreted, by_interpreter)
            # Earlier points may have left memory that only a release makes free: here, where no traceback
            # holds on to this one's.
            self._release()
            return self._verify_and_time(found, interpreted, by_interpreter)
        except torch.OutOfMemoryError as error:
            return failed("out_of_memory", str(error).split(". ")[0])
        except Exception as error:
            return failed(classify(error), f"{type(error).__name__}: {error}")
        finally:
            if self._prepared is None:
                self._release()

    @staticmethod
    def _is_interpreted(where: str, point: Point) -> bool:
        return kernels.load(where).kernel.provider(point.provider).interpreted

    def _verify_and_time(self, found: Instance, interpreted: Values | None, by_interpreter: bool) -> Outcome:
        prepared = self._prepare(found)
        in_place = found.loaded.kernel.in_place

        def restore() -> None:
            for x, copy in zip(prepared.inputs, prepared.copies, strict=True):
                x.copy_(copy)

        rotation = Rotation(found.call, (prepared.inputs,), restore if in_place else None)

        def judge(outputs: Tensors, when: str) -> tuple[Verdict, Outcome | None]:
            self._synchronize()
            if in_place:
                outputs = outputs[: len(prepared.expected.declared)]
            verdict = verification.compare_all(outputs, prepared.expected)
            error = verdict.error
            read_only = len(outputs) if in_place else 0
            if error is None and not verification.unchanged(
                prepared.inputs[read_only:], prepared.copies[read_only:]
            ):
                error = "changed its input"
            if error is None:
                return verdict, None
            self._prepared = None
            wrong = Outcome(
                status="incorrect",
                error=f"{when}: {error}",
                interpreted=interpreted,
                max_abs_err=verdict.max_abs_err,
                max_rel_err=verdict.max_rel_err,
            )
            return verdict, wrong

        with recorded(found) as launched:
            outputs = first_outputs(found, rotation)
        before, wrong = judge(outputs, "first call")
        if wrong is not None:
            return wrong
        del outputs
        verified = {"interpreted": interpreted, "launch": launched()}
        if by_interpreter:
            return Outcome(
                status="verified", max_abs_err=before.max_abs_err, max_rel_err=before.max_rel_err, **verified
            )
        samples, state = self.stopwatch.time(found.call, prepared.inputs, prepared.bytes, rotation.restore)
        after, wrong = judge(samples.outputs, "after timing")
        if wrong is not None:
            return wrong
        if in_place:
            restore()
        return Outcome(
            status="ok",
            max_abs_err=max(before.max_abs_err, after.max_abs_err),
            max_rel_err=max(before.max_rel_err, after.max_rel_err),
            timing=summary(samples, self.stopwatch.cache(samples)),
            state=state,
            **verified,
        )

    def _prepare(self, found: Instance) -> Prepared:
        key = (found.loaded.package, values_of(found.problem))
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = None
            inputs = found.inputs(self.device, self.seed)
            declared = found.loaded.outputs(found.problem)
            tolerance = found.loaded.kernel.tolerance(found.problem)
            tolerances = tolerance if isinstance(tolerance, tuple) else (tolerance,) * len(declared)
            expected = Expected(found.loaded.expected(found.problem, inputs), declared, tolerances)
            copies = tuple(x.clone() for x in inputs)
            total = sum(x.nbytes for x in inputs) + _bytes(declared)
            self._prepared = (key, Prepared(inputs, copies, expected, total))
        return self._prepared[1]

    def _shortage(self, found: Instance) -> str | None:
        """Why the point can't fit, or None. Said before anything is allocated, for a host that runs out of
        memory kills processes instead of answering."""
        inputs = sum(x.nbytes for x in found.inputs(torch.device("meta"), self.seed))
        outputs = found.loaded.outputs(found.problem)
        # Inputs, their copy and the outputs; the reference and its temporaries in float64.
        needed = 2 * inputs + _bytes(outputs) + 3 * 8 * sum(prod(shape) for shape, _ in outputs)
        available = memory_available(self.device)
        if needed <= available:
            return None
        return (
            f"needs about {needed / 1e9:.0f} GB for inputs and reference; {available / 1e9:.0f} GB are free"
        )

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _release(self) -> None:
        """Let go of all memory: of what went wrong, nothing shall be left for the next point."""
        self._prepared = None
        gc.collect()
        if self.device.type == "cuda":
            graph.release()


def _load_triton() -> None:
    """Import what Triton's first launch needs, and hash Triton itself, as each process has to: half a second,
    much of it without the interpreter's lock.

    It is Triton's own affair and differs from version to version. Where it can't be done, the launch does it.
    """
    with suppress(Exception):
        import triton.backends.nvidia.compiler
        import triton.backends.nvidia.driver  # noqa: F401
        from triton.runtime.cache import triton_key

        triton_key()


def first_outputs(found: Instance, rotation: Rotation) -> Tensors:
    """What a call gives from memory that held NaN."""
    outputs = found.loaded.outputs(found.problem)
    if (
        found.provider.compiled
        or rotation.restore is not None
        or not all(d.is_floating_point for _, d in outputs)
    ):
        # torch.compile would compile it once for the flag that poisons memory, and again without it; and of
        # integers the value that memory is filled with may be the right one.
        return checked_outputs(rotation)
    with verification.poisoned_memory():
        return rotation.outputs()


def _bytes(declared: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> int:
    return sum(prod(shape) * dtype.itemsize for shape, dtype in declared)


def summary(samples: Samples, cache: Literal["cold", "hot"]) -> Timing:
    """The statistics a ledger row holds, with the samples they can be redone from."""
    ordered = sorted(samples.samples_us)
    return Timing(
        timer=samples.timer,
        cache=cache,
        median_us=quantile(ordered, 0.5),
        p20_us=quantile(ordered, 0.2),
        p80_us=quantile(ordered, 0.8),
        min_us=ordered[0],
        rel_ci=relative_half_width(ordered),
        overhead_us=samples.overhead_us,
        n_samples=len(ordered),
        samples_us=tuple(round(sample, 4) for sample in samples.samples_us),
    )


def without_colors(text: str) -> str:
    """The text without what makes it colored on a terminal, as some compilers write their messages."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def classify(error: Exception) -> Status:
    """The status that an exception from a provider stands for."""
    name = type(error).__name__
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return "out_of_memory"
    if name in ("CompilationError", "CompileTimeAssertionFailure", "BuildError", "PTXASError") or (
        "inductor" in type(error).__module__ or "dynamo" in type(error).__module__
    ):
        return "compile_error"
    return "runtime_error"


def memory_available(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
