"""How the timers differ: one provider, timed by every timer, again and again.

    python -m pipeline.timers kernel=softmax
    python -m pipeline.timers kernel=square provider=triton_flat size=[256,4096] block_size=2048
    python -m pipeline.timers kernel=gelu size=4096 repeats=3

Prints for each problem and timer the time, its spread over the repeats, what a measurement costs, and how
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
from matplotlib.figure import Figure
from rich.table import Table

from pipeline.command.options import TimersConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution import instance
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points.choice import of_provider
from pipeline.points.frozen import Record, Values
from pipeline.points.notation import extent, label, words
from pipeline.points.plan import Target
from pipeline.points.point import Point
from pipeline.reporting.numbers import print_wide
from pipeline.store import results
from pipeline.store.ceilings import NO_OVERHEAD
from pipeline.store.files import write_atomically
from pipeline.timing.settings import TimingSettings
from pipeline.timing.statistics import quantile
from pipeline.timing.stopping import Either
from pipeline.timing.stopping.budget import Budget
from pipeline.timing.stopping.confidence import Confidence
from pipeline.timing.stopwatch import COLD_FACTOR, MOST_SETS, Stopwatch, last_level_cache, ring
from pipeline.timing.timers import Rotation, Samples, cupti
from pipeline.timing.timers.graph import capture
from pipeline.timing.timers.overhead import calibrate
from pipeline.timing.timers.wall import WallTimer

TIMERS = ("graph", "event", "do_bench", "wall")


class TimerRow(Record):
    """One timer at one point: microseconds, spread (max - min over the median of the repeats' medians),
    milliseconds a measurement, and CUPTI's duration (None where CUPTI can't be read)."""

    kernel: str
    provider: str
    problem: Values
    parameters: Values
    timer: str
    median_us: float
    spread: float
    cost_ms: float
    cupti_us: float | None

    @property
    def off(self) -> float | None:
        """How far the time is from CUPTI's, relative to it."""
        return None if self.cupti_us is None else self.median_us / self.cupti_us - 1

    @property
    def place(self) -> str:
        """What was timed, without the provider: ``float32 4096``, ``1024x4w float32 4096``."""
        point = Point(
            kernel=self.kernel, provider=self.provider, problem=self.problem, parameters=self.parameters
        )
        configuration = label(point).removeprefix(self.provider).strip()
        return " ".join(filter(None, [configuration, words(point), extent(point)]))


def run(config: TimersConfig) -> None:
    """Time every point by every timer, print the table, write rows and plot."""
    chosen = device.resolve(config.device)
    target = Target(chosen.kind, device.capabilities(chosen))
    points = of_provider(config.entry, config.preset.name, config.provider, config.pin, target)
    rows = []
    with DeviceLock(chosen, config.wait_s, warn):
        if chosen.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
        where = torch.device(chosen.kind)
        watches = stopwatches(where, config.timing)
        for point in points:
            rows += measure(config, point, where, watches)
    show(rows, f"{config.entry.name}/{points[0].provider} on {chosen.slug}")
    # Of results/timers the folder above is what a CPU's own stands in place of.
    output = results.folder_for(config.output.parent, chosen.kind) / config.output.name
    path = output / config.entry.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    plot = path.with_suffix(".svg")
    write_atomically(plot, drawn(rows))
    say(f"Rows: {path}, plot: {plot}")


Watch = Callable[[Rotation, int], Samples]
"""Times a call on its inputs, given the bytes of these and its outputs."""


def stopwatches(where: torch.device, settings: TimingSettings) -> dict[str, Watch]:
    """Every timer that the device has, as a sweep uses it, and a host clock that does not wait."""
    stopwatch = Stopwatch(where, settings)
    stopwatch.overhead = calibrate() if where.type == "cuda" else NO_OVERHEAD
    stopwatch.warm_up()
    if where.type != "cuda":
        return {"perf_counter": partial(sampled, stopwatch, "auto")}
    stop = Either(Confidence(settings.target_rel_ci, settings.min_samples), Budget(settings.max_seconds))
    unsynchronized = WallTimer(synchronize=False)
    watches: dict[str, Watch] = {name: partial(sampled, stopwatch, name) for name in TIMERS}
    return {**watches, "wall_no_sync": lambda rotation, _: unsynchronized.measure(rotation, stop)}


def sampled(stopwatch: Stopwatch, timer: str, rotation: Rotation, bytes_: int) -> Samples:
    """The samples of one stopwatch by the named timer."""
    stopwatch.settings = stopwatch.settings.model_copy(update={"timer": timer})
    samples, _ = stopwatch.time(rotation.call, rotation.inputs[0], bytes_, rotation.in_place)
    return samples


def measure(
    config: TimersConfig, point: Point, where: torch.device, watches: dict[str, Watch]
) -> list[TimerRow]:
    """One point by every timer, the timers in turn so that a drift of the device reaches all alike."""
    found = instance.standalone(config.entry.loaded.where, point)
    inputs = found.inputs(where, config.seed)
    bytes_ = instance.bytes_of(found, inputs)
    rotation = Rotation(found.call, (inputs,), found.loaded.kernel.in_place)
    repeats: dict[str, list[tuple[float, float]]] = {}
    for _ in range(config.repeats):
        for name, watch in watches.items():
            begin = perf_counter()
            samples = watch(rotation, bytes_)
            cost_ms = (perf_counter() - begin) * 1e3
            repeats.setdefault(name, []).append((quantile(sorted(samples.samples_us), 0.5), cost_ms))
    reference = None
    if where.type == "cuda":
        sets = min(ceil(COLD_FACTOR * last_level_cache(where) / bytes_), MOST_SETS)
        cold = ring(inputs, sets, found.another(where))
        graphs = capture(Rotation(found.call, cold, rotation.in_place), max(sets, 20))
        reference = cupti.microseconds_a_call(graphs.turn, graphs.launches)
    rows = []
    for name, measured in repeats.items():
        times = [us for us, _ in measured]
        rows.append(
            TimerRow(
                **point.model_dump(),
                timer=name,
                median_us=median(times),
                spread=(max(times) - min(times)) / median(times),
                cost_ms=median(cost for _, cost in measured),
                cupti_us=reference,
            )
        )
    return rows


def show(rows: list[TimerRow], title: str) -> None:
    """Print the table."""
    table = Table(title=title)
    for heading in ("problem", "timer", "us", "spread", "cost ms", "CUPTI us", "off"):
        table.add_column(heading, justify="left" if heading in ("problem", "timer") else "right")
    for row in rows:
        table.add_row(
            row.place,
            row.timer,
            f"{row.median_us:.4g}",
            f"{row.spread:.2%}",
            f"{row.cost_ms:.1f}",
            "–" if row.cupti_us is None else f"{row.cupti_us:.4g}",
            "–" if row.off is None else f"{row.off:+.1%}",
        )
    print_wide(console, table)


def drawn(rows: list[TimerRow]) -> bytes:
    """The rows as an SVG: microseconds by timer against the problem, CUPTI's duration as the line to meet."""
    with matplotlib.rc_context({"svg.hashsalt": "timers", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        places = list(dict.fromkeys(row.place for row in rows))
        for timer in dict.fromkeys(row.timer for row in rows):
            axes.plot([row.median_us for row in rows if row.timer == timer], marker="o", label=timer)
        reference = {row.place: row.cupti_us for row in rows if row.cupti_us is not None}
        if len(reference) == len(places):
            axes.plot(list(reference.values()), color="black", linestyle="--", label="CUPTI")
        axes.set_xticks(range(len(places)), places)
        axes.set_yscale("log")
        axes.set_ylabel("us a call")
        axes.legend()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()


if __name__ == "__main__":
    run_stage("timers", TimersConfig, run)
