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
from collections.abc import Callable
from functools import partial
from math import ceil
from statistics import median
from time import perf_counter

import matplotlib
import torch
from matplotlib.figure import Figure
from rich.table import Table

import kernels
from kernels.contract import DTYPES, Inputs, Kernel
from kernels.point import AXES, Point
from pipeline.config import TimersConfig, console, run_stage
from pipeline.errors import unknown
from pipeline.measure import device, extension
from pipeline.measure.ceiling import NO_OVERHEAD, Overhead
from pipeline.measure.ledger import write_atomically
from pipeline.measure.lock import DeviceLock
from pipeline.measure.record import Record
from pipeline.measure.statistics import quantile
from pipeline.measure.stopping import Either, Stopping
from pipeline.measure.stopping.budget import Budget
from pipeline.measure.stopping.confidence import Confidence
from pipeline.measure.stopwatch import COLD_FACTOR, last_level_cache, ring
from pipeline.measure.timer import Timer, Workload, cupti
from pipeline.measure.timer.cpu import CpuTimer
from pipeline.measure.timer.do_bench import DoBenchTimer
from pipeline.measure.timer.event import EventTimer
from pipeline.measure.timer.graph import GraphTimer, capture
from pipeline.measure.timer.overhead import calibrate
from pipeline.measure.timer.wall import WallTimer


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
        if provider.extension is not None:
            extension.load(kernel.name, provider.extension)
        call = partial(provider.call, **axes)
        stop = Either(
            Confidence(config.timing.target_rel_ci, config.timing.min_samples),
            Budget(config.timing.max_seconds),
        )
        overhead = calibrate() if chosen.kind == "cuda" else NO_OVERHEAD
        rows = []
        for shape in config.shapes:
            rows += measure(kernel, call, shape, config, chosen, stop, overhead)
    show(rows, f"{kernel.name}/{name} {point.dtype} on {chosen.slug}")
    path = config.output / kernel.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    plot = path.with_suffix(".svg")
    write_atomically(plot, drawn(rows))
    console.print(f"Rows: {path}, plot: {plot}", highlight=False)


def measure(
    kernel: Kernel,
    call: Callable[..., torch.Tensor],
    shape: tuple[int, ...],
    config: TimersConfig,
    chosen: device.Device,
    stop: Stopping,
    overhead: Overhead,
) -> list[Row]:
    """One shape by every timer, the timers in turn so that a drift of the device reaches all alike."""
    where = torch.device(chosen.kind)
    dtype = DTYPES[config.dtype]
    inputs = kernel.inputs(shape, dtype, where, 0)
    sets = ceil(COLD_FACTOR * last_level_cache(where) / kernel.bytes(shape, dtype))
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(config.repeats):
        for name, timer, workload in contestants(call, inputs, sets, where, overhead):
            begin = perf_counter()
            samples = timer.measure(workload(), stop)
            cost_ms = (perf_counter() - begin) * 1e3
            found.setdefault(name, []).append((quantile(sorted(samples.samples_us), 0.5), cost_ms))
    reference = None
    if where.type == "cuda":
        graphs = capture(Workload(call, ring(inputs, sets)), max(sets, 20))
        reference = cupti.microseconds_a_call(graphs.replay, sum(graphs.launches))
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


def contestants(
    call: Callable[..., torch.Tensor], inputs: Inputs, sets: int, where: torch.device, overhead: Overhead
) -> list[tuple[str, Timer, Callable[[], Workload]]]:
    """Every timer that the device has, with what makes its workload: the copies of a ring are part of
    what a measurement costs."""

    def one() -> Workload:
        return Workload(call, (inputs,))

    def many() -> Workload:
        return Workload(call, ring(inputs, sets))

    if where.type == "cpu":
        return [("perf_counter", CpuTimer(), many)]
    return [
        ("graph", GraphTimer(overhead), many),
        ("event", EventTimer(COLD_FACTOR * last_level_cache(where)), one),
        ("do_bench", DoBenchTimer(), one),
        ("wall", WallTimer(), one),
        ("wall_no_sync", WallTimer(synchronize=False), one),
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
