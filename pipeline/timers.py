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
from statistics import median

import matplotlib
from matplotlib.figure import Figure
from rich.table import Table

from pipeline.command.options import TimersConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution import sidecar_files
from pipeline.execution.protocol import TimerName
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.machine.lock import DeviceLock
from pipeline.points.choice import of_provider
from pipeline.points.frozen import Record, Values
from pipeline.points.notation import extent, label, words
from pipeline.points.plan import Target
from pipeline.points.point import Point
from pipeline.reporting.numbers import print_wide
from pipeline.store import results
from pipeline.store.files import write_atomically

TIMERS: tuple[TimerName, ...] = ("graph", "event", "do_bench", "wall", "wall_no_sync")


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
    # The folder of a CPU's own results stands in place of the folder above results/timers.
    output = results.folder_for(config.output.parent, chosen.kind)
    with (
        DeviceLock(chosen, config.wait_s, warn),
        Supervisor(chosen, config.timing, config.seed, config.point_timeout_s) as worker,
    ):
        worker.canary = sidecar_files.canary_for(worker, fingerprint(chosen), output)
        for point in points:
            rows += measured(config, point, worker)
    show(rows, f"{config.entry.name}/{points[0].provider} on {chosen.slug}")
    path = output / config.output.name / config.entry.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    plot = path.with_suffix(".svg")
    write_atomically(plot, drawn(rows))
    say(f"Rows: {path}, plot: {plot}")


def measured(config: TimersConfig, point: Point, worker: Supervisor) -> list[TimerRow]:
    """One point by every timer, the timers in turn so that a drift of the device reaches all alike. A point
    that can't be timed is warned of, and has no rows."""
    is_gpu = worker.device.kind == "cuda"
    timers: tuple[TimerName, ...] = TIMERS if is_gpu else ("auto",)
    found = worker.readings(config.entry.loaded.where, point, timers, config.repeats, is_stamped=is_gpu)
    if found.error is not None:
        warn(f"{label(point)} at {extent(point)}: {found.error}")
    return [
        TimerRow(
            **point.model_dump(),
            timer=timer if is_gpu else timed[0].timing.timer,
            median_us=median(times),
            spread=(max(times) - min(times)) / median(times),
            cost_ms=median(one.took_ms for one in timed),
            cupti_us=found.stamped and found.stamped.duration_us,
        )
        for timer, timed in found.timed.items()
        for times in [[one.timing.median_us for one in timed]]
    ]


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
