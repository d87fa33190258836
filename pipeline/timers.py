"""How the timers differ: one provider, timed by every timer, again and again.

    python -m pipeline.timers kernel=softmax

Prints for each shape and timer the time, its spread over the repeats, what a measurement costs, and how
far the time is from the duration that CUPTI reports for the same launches. This is the lesson about
asynchronous launches in numbers: ``wall_no_sync`` times the launch and not the kernel, ``wall`` adds the
round trip.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter

import matplotlib
import torch
from kernels.point import AXES, Point
from matplotlib.figure import Figure
from rich.table import Table

import kernels
from kernels.contract import DTYPES, Inputs, Kernel
from pipeline import unknown
from pipeline.command.config import TimersConfig, console, run_stage
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points.frozen import Record
from pipeline.store.ceilings import NO_OVERHEAD
from pipeline.store.ledger import write_atomically
from pipeline.timing.settings import TimingSettings
from pipeline.timing.statistics import quantile
from pipeline.timing.stopping import Either
from pipeline.timing.stopping.budget import Budget
from pipeline.timing.stopping.confidence import Confidence
from pipeline.timing.stopwatch import COLD_FACTOR, Stopwatch, last_level_cache, ring
from pipeline.timing.timers import Samples, Workload, cupti
from pipeline.timing.timers.graph import capture
from pipeline.timing.timers.overhead import calibrate
from pipeline.timing.timers.wall import WallTimer
from pipeline.toolchain import extension

TIMERS = ("graph", "event", "do_bench", "wall")


class Row(Record):
    """One timer on one shape: microseconds, spread (max - min over the median of the repeats' medians),
    milliseconds a measurement, and the ratio to CUPTI's duration (None where CUPTI can't be read)."""

    shape: tuple[int, ...]
    timer: str
    median_us: float
    spread: float
    cost_ms: float
    cupti_us: float | None

    @property
    def off(self) -> float | None:
        """How far the time is from CUPTI's, relative to it."""
        return None if self.cupti_us is None else self.median_us / self.cupti_us - 1


def run(config: TimersConfig) -> None:
    """Time every shape by every timer, print the table, write rows and plot."""
    chosen = device.resolve(config.device)
    kernel = kernels.load(config.kernel.name)
    name = config.provider or kernel.baseline
    if name not in (known := [p.name for p in kernel.providers]):
        raise unknown(f"provider of {kernel.name}", name, known)
    provider = kernel.provider(name)
    axes = {axis: getattr(config, axis) for axis in AXES if axis in provider.axes}
    point = Point(kernel.name, name, 1, config.dtype, **axes)
    warn = partial(console.print, style="yellow", highlight=False)
    with DeviceLock(chosen, config.wait_s, warn):
        if chosen.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
        if provider.extension is not None:
            extension.load(kernel.name, provider.extension)
        watches = stopwatches(torch.device(chosen.kind), config.timing)
        rows = []
        for shape in config.shapes:
            rows += measure(kernel, partial(provider.call, **axes), shape, config, watches)
    show(rows, f"{kernel.name}/{name} {point.dtype} on {chosen.slug}")
    path = config.output / kernel.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    plot = path.with_suffix(".svg")
    write_atomically(plot, drawn(rows))
    console.print(f"Rows: {path}, plot: {plot}", highlight=False)


Watch = Callable[[Callable[..., torch.Tensor], Inputs, int], Samples]
"""Times a call on inputs, given the bytes that it moves."""


def stopwatches(where: torch.device, settings: TimingSettings) -> dict[str, Watch]:
    """Every timer that the device has, as a sweep uses it, and a host clock that does not wait."""
    names = TIMERS if where.type == "cuda" else ("auto",)
    overhead = calibrate() if where.type == "cuda" else NO_OVERHEAD
    stopwatch = Stopwatch(where, settings)
    stopwatch.overhead = overhead
    stopwatch.warm_up()
    watches: dict[str, Watch] = {
        "perf_counter" if name == "auto" else name: partial(sampled, stopwatch, name) for name in names
    }
    if where.type == "cuda":
        stop = Either(Confidence(settings.target_rel_ci, settings.min_samples), Budget(settings.max_seconds))
        unsynchronized = WallTimer(synchronize=False)
        watches["wall_no_sync"] = lambda call, inputs, _: unsynchronized.measure(
            Workload(call, (inputs,)), stop
        )
    return watches


def sampled(
    stopwatch: Stopwatch, timer: str, call: Callable[..., torch.Tensor], inputs: Inputs, bytes_: int
) -> Samples:
    """The samples of one stopwatch by the named timer."""
    stopwatch.settings = stopwatch.settings.model_copy(update={"timer": timer})
    samples, _ = stopwatch.time(call, inputs, bytes_)
    return samples


def measure(
    kernel: Kernel,
    call: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    config: TimersConfig,
    watches: dict[str, Watch],
) -> list[Row]:
    """One shape by every timer, the timers in turn so that a drift of the device reaches all alike."""
    where = torch.device("cuda" if "graph" in watches else "cpu")
    dtype = DTYPES[config.dtype]
    inputs = kernel.inputs(shape, dtype, where, 0)
    bytes_ = kernel.bytes(shape, dtype)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(config.repeats):
        for name, watch in watches.items():
            begin = perf_counter()
            samples = watch(call, inputs, bytes_)
            cost_ms = (perf_counter() - begin) * 1e3
            found.setdefault(name, []).append((quantile(sorted(samples.samples_us), 0.5), cost_ms))
    reference = None
    if where.type == "cuda":
        sets = ceil(COLD_FACTOR * last_level_cache(where) / bytes_)
        graphs = capture(Workload(call, ring(inputs, sets)), max(sets, 20))
        reference = cupti.microseconds_a_call(graphs.turn, graphs.launches)
    return [
        Row(
            shape=shape,
            timer=name,
            median_us=median(us for us, _ in repeats),
            spread=(max(us for us, _ in repeats) - min(us for us, _ in repeats))
            / median(us for us, _ in repeats),
            cost_ms=median(cost for _, cost in repeats),
            cupti_us=reference,
        )
        for name, repeats in found.items()
    ]


def show(rows: list[Row], title: str) -> None:
    """Print the table."""
    table = Table(title=title)
    for heading in ("shape", "timer", "us", "spread", "cost ms", "CUPTI us", "off"):
        table.add_column(heading, justify="left" if heading in ("shape", "timer") else "right")
    for row in rows:
        table.add_row(
            "x".join(map(str, row.shape)),
            row.timer,
            f"{row.median_us:.4g}",
            f"{row.spread:.2%}",
            f"{row.cost_ms:.1f}",
            "–" if row.cupti_us is None else f"{row.cupti_us:.4g}",
            "–" if row.off is None else f"{row.off:+.1%}",
        )
    console.print(table)


def drawn(rows: list[Row]) -> bytes:
    """The rows as an SVG: microseconds by timer against the shape, CUPTI's duration as the line to meet."""
    with matplotlib.rc_context({"svg.hashsalt": "timers", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        shapes = list(dict.fromkeys(row.shape for row in rows))
        for timer in dict.fromkeys(row.timer for row in rows):
            axes.plot([row.median_us for row in rows if row.timer == timer], marker="o", label=timer)
        reference = {row.shape: row.cupti_us for row in rows if row.cupti_us is not None}
        if len(reference) == len(shapes):
            axes.plot(list(reference.values()), color="black", linestyle="--", label="CUPTI")
        axes.set_xticks(range(len(shapes)), ["x".join(map(str, shape)) for shape in shapes])
        axes.set_yscale("log")
        axes.set_ylabel("us a call")
        axes.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()


if __name__ == "__main__":
    run_stage("timers", TimersConfig, run)
