"""Time functions by several timers, in processes with different histories, beside CUPTI's durations.

    python -m pipeline.execution.histories HISTORY TIMER PLAN

Earlier work of a process changes how fast it replays CUDA graphs (see ``kernel_pipeline.timing.launch_gap``).
``measured`` starts a process for each history and timer. The process does the history's work, then times the
functions of the plan one after the other, and prints a JSON line for each. The plan is a JSON list of
``TimedFunction``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from kernel_pipeline import bench
from kernel_pipeline.benchmark import settings_of, stopwatch
from kernel_pipeline.execution import instance
from kernel_pipeline.loading import Tensors
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.point import Point
from kernel_pipeline.subject import subject
from kernel_pipeline.timing.timers import cupti

from .. import ROOT

SEED = 0

TURNS = 10
"""The number of processes that time by ``bench``, over all histories together."""

MS = 1e3
"""Microseconds in a millisecond."""

NVBENCH_S = "0.1"
"""The minimum seconds of samples that cuda-bench takes of a function."""


class TimedFunction(Record):
    """A function to time: a point of the kernel at ``where``, or a name in ``OTHERS``. ``row_us`` is the time
    of the point's row in microseconds."""

    name: str
    where: str | None = None
    point: Point | None = None
    row_us: float | None = None


class HistoryReading(Record):
    """The time of a function by one timer in one process, in microseconds, or the reason for no time.
    ``turn`` numbers the processes of a history and timer."""

    name: str
    timer: str
    history: str
    turn: int
    us: float | None = None
    error: str | None = None


Function = tuple[Callable[..., Any], Callable[[int], Tensors]]
"""A function and the maker of its inputs from a seed."""


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype, device: str) -> Callable[[int], Tensors]:
    """Return a maker of normal tensors of these shapes."""

    def make(seed: int) -> Tensors:
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(torch.randn(s, generator=generator, device=device).to(dtype) for s in shapes)

    return make


def others(device: str) -> dict[str, Function]:
    """Return functions of other projects by name. Their inputs are smaller on a CPU."""
    scale = 1 if device == "cuda" else 16
    images = (32 // scale, 64, 56, 56)
    half = partial(drawn, dtype=torch.bfloat16, device=device)
    full = partial(drawn, dtype=torch.float32, device=device)
    return {
        "torch.cumsum": (partial(torch.cumsum, dim=-1), full((256, 1024))),
        "torch group_norm": (partial(functional.group_norm, num_groups=32), full(images)),
        "torch conv2d": (partial(functional.conv2d, padding=1), half(images, (64, 64, 3, 3))),
        "torch attention": (
            partial(functional.scaled_dot_product_attention, is_causal=True),
            half(*[(4, 16, 2048 // scale, 128)] * 3),
        ),
        "torch.sort": (partial(torch.sort, dim=-1), full((4096 // scale, 4096))),
    }


def loaded(one: TimedFunction, device: str) -> Function:
    """Return the function to call and the maker of its inputs. Raises whatever a kernel's files raise."""
    if one.point is None or one.where is None:
        return others(device)[one.name]
    found = instance.standalone(one.where, one.point)
    return found.call, partial(found.inputs, torch.device(device))


# Histories: the work of a process before it times anything.


def six_graphs() -> None:
    """Capture six CUDA graphs and keep them."""
    for _ in range(6):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            KEPT.append(torch.ones(256, device="cuda").square())
        KEPT.append(graph)


def eight_streams() -> None:
    """Work on eight streams."""
    for _ in range(8):
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            torch.ones(256, device="cuda").square()
        KEPT.append(stream)
    torch.cuda.synchronize()


def profiler() -> None:
    """Profile a few calls."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.profiler.profile():
        torch.ones(256, device=device).square()


KEPT: list[object] = []

HISTORIES: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "six graphs": six_graphs,
    "eight streams": eight_streams,
    "profiler": profiler,
}


# Timers: each returns microseconds.


def by_bench(function: Function) -> float:
    """Time by this project's library."""
    call, make = function
    found = bench(call, make=make, ceilings=False)
    if not found.valid:
        raise RuntimeError(found.why)
    return found.median_us


def by_cupti(function: Function) -> float:
    """Return CUPTI's duration of the launches that ``bench`` would time."""
    call, make = function
    one = subject(call, (), make, None, None)
    with stopwatch(one.device, settings_of("cold", 0.1), context=True) as watch:
        bytes_ = sum(x.nbytes for x in one.arguments.tensors)
        samples, _ = watch.time(one.arguments.call(call), one.arguments.tensors, bytes_, another=one.another)
        if samples.turn is None:
            raise RuntimeError("the function can't be captured into a graph")
        stamps = cupti.stamped(samples.turn, samples.launches)
    if stamps is None:
        raise RuntimeError("CUPTI did not report all kernels")
    return stamps.duration_us


def by_do_bench(function: Function) -> float:
    """Time by ``triton.testing.do_bench``."""
    from triton.testing import do_bench

    call, make = function
    return MS * float(do_bench(partial(call, *make(SEED)), return_mode="median"))


def by_do_bench_cudagraph(function: Function) -> float:
    """Time by ``triton.testing.do_bench_cudagraph``."""
    from triton.testing import do_bench_cudagraph

    call, make = function
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        return MS * float(do_bench_cudagraph(partial(call, *make(SEED)), return_mode="median"))


def by_torch_benchmark(function: Function) -> float:
    """Time by ``torch.utils.benchmark``."""
    from torch.utils.benchmark import Timer

    call, make = function
    timer = Timer("call()", globals={"call": partial(call, *make(SEED))})
    return MS * MS * float(timer.blocked_autorange(min_run_time=0.1).median)


def by_flashinfer(function: Function, use_cuda_graph: bool) -> float:
    """Time by FlashInfer's timer."""
    from flashinfer.testing import bench_gpu_time

    call, make = function
    inputs = make(SEED)
    times: list[float] = bench_gpu_time(call, input_args=inputs, use_cuda_graph=use_cuda_graph)
    return MS * median(times)


TIMERS: dict[str, Callable[[Function], float]] = {
    "bench": by_bench,
    "CUPTI": by_cupti,
    "do_bench": by_do_bench,
    "do_bench_cudagraph": by_do_bench_cudagraph,
    "torch.utils.benchmark": by_torch_benchmark,
    "flashinfer": partial(by_flashinfer, use_cuda_graph=False),
    "flashinfer, graphs": partial(by_flashinfer, use_cuda_graph=True),
}

CUDA_BENCH = "cuda-bench"
"""NVBench through its Python package. It launches the calls of a batch from Python, without waits between
them."""

NVBENCH_TAGS = {CUDA_BENCH: "nv/cold/time/gpu/mean", f"{CUDA_BENCH}, batches": "nv/batch/time/gpu/mean"}

ON_CPU = (("none", "profiler"), ("bench", "torch.utils.benchmark"))
"""The histories and timers that need no GPU."""


def by_cuda_bench(plan: Sequence[TimedFunction], timer: str) -> Iterator[tuple[str, float | str]]:
    """Yield each function's name with its time by cuda-bench or the error. NVBench runs all functions in one
    call and writes one file."""
    from cuda import bench as nvbench

    failed: dict[str, str] = {}

    def register(one: TimedFunction) -> None:
        def run(state: Any) -> None:
            try:
                call, make = loaded(one, "cuda")
                inputs = make(SEED)
            except Exception as error:
                failed[one.name] = str(error)
                state.skip("it can't be loaded")
                return
            handle = state.get_stream().addressof()
            stream = torch.cuda.ExternalStream(handle)  # type: ignore[no-untyped-call]

            def launch(_: Any) -> None:
                with torch.cuda.stream(stream):
                    call(*inputs)

            launch(None)
            torch.cuda.synchronize()
            state.exec(launch, batched=True)

        nvbench.register(run).set_name(one.name)

    for one in plan:
        register(one)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "times.json")
        options = ["--json", str(path), "--timeout", "2", "--min-time", NVBENCH_S, "--quiet"]
        nvbench.run_all_benchmarks([sys.argv[0], *options])
        found = json.loads(path.read_text())
    for benchmark in found["benchmarks"]:
        tags = {
            summary["tag"]: datum["value"]
            for state in benchmark["states"]
            for summary in state["summaries"] or ()
            for datum in summary["data"]
            if datum["name"] == "value"
        }
        seconds, name = tags.get(NVBENCH_TAGS[timer]), benchmark["name"]
        yield name, failed.get(name, "no time") if seconds is None else MS * MS * float(seconds)


def answer(history: str, timer: str, plan: Sequence[TimedFunction]) -> None:
    """Do the history's work, time the functions and print a line for each. The process waits for a line on
    stdin before it uses the GPU, so that it can import torch while an earlier process measures."""
    sys.stdin.readline()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    HISTORIES[history]()
    if timer in NVBENCH_TAGS:
        for name, found in by_cuda_bench(plan, timer):
            say(name, found)
        return
    for one in plan:
        try:
            say(one.name, TIMERS[timer](loaded(one, device)))
        except Exception as error:
            say(one.name, f"{type(error).__name__}: {error}")


def say(name: str, found: float | str) -> None:
    """Print the answer for a function."""
    print(json.dumps({"name": name, "us" if isinstance(found, float) else "error": found}), flush=True)


def processes(device: str) -> list[tuple[str, str, int]]:
    """Return the history, timer and turn of each process.

    ``bench`` runs in ``TURNS`` processes, whose histories alternate. CUPTI runs in one process. Every other
    installed timer runs in one process per history.
    """
    histories, timers = ON_CPU if device == "cpu" else (tuple(HISTORIES), tuple(TIMERS))
    if device == "cuda":
        timers = tuple(
            timer for timer in timers if not timer.startswith("flashinfer") or find_spec("flashinfer")
        )
        timers += tuple(NVBENCH_TAGS) if find_spec("cuda") and find_spec("cuda.bench") else ()
    own = [(histories[turn % len(histories)], "bench", turn // len(histories)) for turn in range(TURNS)]
    stamps = [("none", "CUPTI", 0)] if device == "cuda" else []
    rest = [(h, t, 0) for t in timers if t not in ("bench", "CUPTI") for h in histories]
    return stamps + own + rest


def measured(plan: Sequence[TimedFunction], chosen: Device, timeout_s: float) -> Iterator[HistoryReading]:
    """Yield the readings of all processes, one process after the other. ``timeout_s`` is the limit for one
    function in seconds."""
    waiting = processes(chosen.kind)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": chosen.uuid or ""}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        path.write_text(json.dumps([one.to_dict() for one in plan]))

        def start(history: str, timer: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, "-m", __spec__.name, history, timer, str(path)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        process = start(*waiting[0][:2])
        for place, (history, timer, turn) in enumerate(waiting):
            following = start(*waiting[place + 1][:2]) if place + 1 < len(waiting) else process
            yield from _answers(process, plan, history, timer, turn, timeout_s * len(plan))
            process = following


def _answers(
    process: subprocess.Popen[str],
    plan: Sequence[TimedFunction],
    history: str,
    timer: str,
    turn: int,
    timeout_s: float,
) -> Iterator[HistoryReading]:
    try:
        printed, failure = process.communicate("go\n", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, failure = process.communicate()
        failure = f"it took longer than {timeout_s:.0f} s"
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"name"')]
    found = {line.pop("name"): line for line in lines}
    why = (failure.strip().splitlines() or ["no answer"])[-1][-200:]
    for one in plan:
        values = found.get(one.name, {"error": why})
        yield HistoryReading(name=one.name, timer=timer, history=history, turn=turn, **values)


if __name__ == "__main__":
    _, chosen_history, chosen_timer, chosen_plan = sys.argv
    functions = [TimedFunction.from_dict(one) for one in json.loads(Path(chosen_plan).read_text())]
    answer(chosen_history, chosen_timer, functions)
