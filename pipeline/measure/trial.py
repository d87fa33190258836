"""One point, from inputs to outcome, in this process: make inputs, run, verify, time, verify again."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import kernels
from kernels.contract import DTYPES, Inputs, Kernel, Provider, Tolerance, numel
from kernels.point import Point, Shape
from pipeline.measure import extension, verify
from pipeline.measure.ceiling import Overhead
from pipeline.measure.record import Outcome, Status, Timing
from pipeline.measure.settings import TimingSettings
from pipeline.measure.statistics import quantile, relative_half_width
from pipeline.measure.stopwatch import Stopwatch
from pipeline.measure.timer import Samples, Workload, checked_output, graph


@dataclass
class Problem:
    """Inputs and the right answer of one kernel at one shape and dtype; shared by all its providers."""

    shape: Shape
    inputs: Inputs
    copies: Inputs
    reference: torch.Tensor


class Trial:
    """Runs points on one device of this process."""

    def __init__(self, device: str, settings: TimingSettings, seed: int) -> None:
        self.device = torch.device(device)
        self.settings = settings
        self.seed = seed
        self.stopwatch = Stopwatch(self.device, settings)
        self._problem: tuple[tuple[str, Shape, str], Problem] | None = None

    def warm_up(self) -> None:
        """Do now what the first point would else wait for: the device's context, the code that verifies."""
        with ThreadPoolExecutor(1) as beside:
            if self.device.type == "cuda":
                beside.submit(_load_triton)
            x = torch.ones(8, device=self.device)
            verify.compare(x.square(), x.double(), x.dtype, Tolerance(rtol=0.0, atol=0.0))
            self.stopwatch.warm_up()

    def run(self, point: Point, overhead: Overhead) -> Outcome:
        """What happens at the point; ``overhead`` is what the graph timer takes off. Never raises for what a
        provider does short of ending the process."""
        self.stopwatch.overhead = overhead
        kernel = kernels.load(point.kernel)
        provider = kernel.provider(point.provider)
        interpreted = self.device.type == "cpu" and provider.is_triton
        shape = kernel.interpreted_shape(point) if interpreted else kernel.shape_of(point)

        def failed(status: Status, error: str) -> Outcome:
            # Whatever went wrong may have written where it should not; later points get fresh inputs.
            self._problem = None
            return Outcome(status=status, error=without_colors(error), shape=shape)

        reason = provider.unsupported(point, shape)
        if reason is None and self.device.type not in provider.devices and not interpreted:
            reason = "runs on a CPU only" if self.device.type == "cuda" else "needs a GPU"
        if reason is not None:
            return Outcome(status="unsupported", error=reason, shape=shape)
        if shortage := self._shortage(kernel, shape, point.dtype):
            return failed("out_of_memory", shortage)
        try:
            if provider.extension is not None:
                extension.load(point.kernel, provider.extension)
            with suppress(torch.OutOfMemoryError):
                return self._verify_and_time(kernel, provider, point, shape, interpreted)
            # Earlier points may have left memory that only a release makes free: here, where no traceback
            # holds on to this one's.
            self._release()
            return self._verify_and_time(kernel, provider, point, shape, interpreted)
        except torch.OutOfMemoryError as error:
            return failed("out_of_memory", str(error).split(". ")[0])
        except Exception as error:
            return failed(classify(error), f"{type(error).__name__}: {error}")
        finally:
            if self._problem is None:
                self._release()

    def _verify_and_time(
        self, kernel: Kernel, provider: Provider, point: Point, shape: Shape, interpreted: bool
    ) -> Outcome:
        problem = self._prepare(kernel, shape, point.dtype)
        call = bind(provider, point)
        dtype = DTYPES[point.dtype]
        tolerance = kernel.tolerance(dtype)

        def judge(out: object, when: str) -> tuple[verify.Verdict, Outcome | None]:
            self._synchronize()
            verdict = verify.compare(out, problem.reference, dtype, tolerance)
            error = verdict.error
            if error is None and not verify.unchanged(problem.inputs, problem.copies):
                error = "changed its input"
            if error is None:
                return verdict, None
            self._problem = None
            wrong = Outcome(
                status="incorrect",
                error=f"{when}: {error}",
                shape=shape,
                max_abs_err=verdict.max_abs_err,
                max_rel_err=verdict.max_rel_err,
            )
            return verdict, wrong

        out = first_output(provider, call, problem.inputs)
        before, wrong = judge(out, "first call")
        if wrong is not None:
            return wrong
        del out
        if interpreted:
            return Outcome(
                status="verified",
                shape=shape,
                max_abs_err=before.max_abs_err,
                max_rel_err=before.max_rel_err,
            )
        samples, state = self.stopwatch.time(call, problem.inputs, kernel.bytes(shape, dtype))
        after, wrong = judge(samples.output, "after timing")
        if wrong is not None:
            return wrong
        return Outcome(
            status="ok",
            shape=shape,
            max_abs_err=max(before.max_abs_err, after.max_abs_err),
            max_rel_err=max(before.max_rel_err, after.max_rel_err),
            timing=summary(samples, self.stopwatch.cache(samples)),
            state=state,
        )

    def _prepare(self, kernel: Kernel, shape: Shape, dtype: str) -> Problem:
        key = (kernel.name, shape, dtype)
        if self._problem is None or self._problem[0] != key:
            self._problem = None
            inputs = kernel.inputs(shape, DTYPES[dtype], self.device, self.seed)
            reference = kernel.reference(*inputs)
            self._problem = (key, Problem(shape, inputs, tuple(x.clone() for x in inputs), reference))
        return self._problem[1]

    def _shortage(self, kernel: Kernel, shape: Shape, dtype: str) -> str | None:
        """Why the point can't fit, or None. Said before anything is allocated, for a host that runs out of
        memory kills processes instead of answering."""
        # Inputs, their copy and the output in the dtype; the reference and its temporaries in float64.
        needed = 2 * kernel.bytes(shape, DTYPES[dtype]) + 3 * 8 * numel(shape)
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
        self._problem = None
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


def bind(provider: Provider, point: Point) -> Callable[..., torch.Tensor]:
    """The provider's call with the point's launch parameters filled in."""
    axes = point.axes()
    return lambda *inputs: provider.call(*inputs, **axes)


def first_output(provider: Provider, call: Callable[..., torch.Tensor], inputs: Inputs) -> torch.Tensor:
    """What a call returns from memory that held NaN."""
    if provider.compiles_itself:
        # It would be compiled once for the flag that poisons memory, and again without it.
        return checked_output(Workload(call, (inputs,)))
    with verify.poisoned_memory():
        return call(*inputs)


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
