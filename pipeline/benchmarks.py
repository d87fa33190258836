"""Benchmark the device and the measuring itself: highest rates, timers, the values of inputs.

    python -m pipeline.benchmarks ceilings device=cuda:1 output=results
    python -m pipeline.benchmarks timers kernel=square size=[256,4096] repeats=12
    python -m pipeline.benchmarks timers kernel=matmul provider=cuda_wgmma
    python -m pipeline.benchmarks inputs kernel=matmul size=[4096,8192] dtype=bfloat16

``ceilings`` measures the GB/s of a large copy, and for each arithmetic the TFLOP/s of a large matrix product.
Tables and plots show rates as shares of these ceilings. A sweep measures ceilings that are not known.

``timers`` times one provider by every timer: the time, its spread over the repeats, the cost of a
measurement, and the distance from the duration that CUPTI reports for the same launches. ``wall_no_sync``
times the launch and not the kernel; ``wall`` also times the synchronization.

``inputs`` times a call on normal values, small integers and zeros, in a burst and, on a GPU, after seconds of
the same work. A GPU draws more power the more bits change, so under its power limit it is faster on zeros.
Inputs other than floating-point numbers stay as the kernel makes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from kernel_pipeline.errors import UserError
from kernel_pipeline.execution.protocol import InputValues, TimerName
from kernel_pipeline.execution.supervisor import Supervisor
from kernel_pipeline.files import write_atomically
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.fingerprint import fingerprint
from kernel_pipeline.machine.lock import DeviceLock
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.ceilings import DISTURBED
from kernel_pipeline.records.measurement import Sustained
from kernel_pipeline.records.point import Point

from . import as_typed
from .command.options import BenchmarksConfig
from .command.run import console, run_stage, say, warn
from .command.words import positional
from .execution import sidecar_files
from .execution.session import Session
from .points.choice import of_provider
from .points.notation import extent, label
from .points.notation import title as title_of
from .points.plan import Target
from .reporting.numbers import number
from .reporting.tables import TextTable
from .store import results

TIMERS: tuple[TimerName, ...] = ("graph", "event", "do_bench", "wall", "wall_no_sync")
KINDS: tuple[InputValues, ...] = ("normal", "integers", "zeros")


class TimerRow(Record):
    """One timer at one point: the median in microseconds, the spread (max - min of the repeats over their
    median), the milliseconds of a measurement, and CUPTI's duration (None without CUPTI)."""

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
    def point(self) -> Point:
        """The point that was timed."""
        return Point(
            kernel=self.kernel, provider=self.provider, problem=self.problem, parameters=self.parameters
        )


class InputsRow(Record):
    """A point on one kind of inputs: the medians of the repeats in microseconds, in a burst and after seconds
    of the same work, with clock and power. The last three are None on a CPU."""

    point: Point
    inputs: str
    burst_us: tuple[float, ...]
    sustained_us: tuple[float, ...] | None
    sm_clock_mhz: int | None
    power_w: float | None


def run(config: BenchmarksConfig) -> None:
    """Measure the ceilings, or time every point by every timer or on every kind of inputs. Print a table and
    write the rows. Raises UserError if no benchmark is named."""
    chosen = device.resolve(config.device)
    if config.benchmark is None:
        raise UserError(f"write {as_typed('benchmarks')} ceilings, timers or inputs.")
    if config.benchmark == "ceilings":
        measure_ceilings(config, chosen)
        return
    target = Target(chosen.kind, device.capabilities(chosen))
    points = of_provider(config.entry, config.preset.name, config.provider, config.pin, target)
    output = results.folder_for(config.output, chosen.kind)
    kinds: tuple[InputValues, ...] = KINDS if config.benchmark == "inputs" else ("normal",)
    rows: list[Any] = []
    with ExitStack() as stack:
        stack.enter_context(DeviceLock(chosen, config.wait_s, warn))
        session = Session(chosen, config.timing.settings, config.seed, config.point_timeout_s, output)
        canary = session.canary
        workers = {kind: stack.enter_context(session.supervisor(values=kind)) for kind in kinds}
        for worker in workers.values():
            worker.canary = canary
        for point in points:
            with console.status(f"{point} …"):
                if config.benchmark == "inputs":
                    rows += on_inputs(config, point, workers)
                else:
                    rows += by_timers(config, point, workers["normal"])
    title = f"{config.entry.name}/{points[0].provider} on {chosen.slug}"
    table = inputs_table if config.benchmark == "inputs" else timers_table
    table(rows, title).print(console)
    path = output / str(config.benchmark) / config.entry.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.to_dict() for row in rows], indent=1) + "\n").encode())
    say(f"Rows: {path}")


def measure_ceilings(config: BenchmarksConfig, chosen: Device) -> None:
    """Measure the device's ceilings, write them and print them."""
    path = results.ceilings_path(results.folder_for(config.output, chosen.kind), chosen.slug)
    with (
        DeviceLock(chosen, config.wait_s, warn),
        Supervisor(chosen, config.timing.settings, config.seed, config.point_timeout_s) as worker,
    ):
        found = sidecar_files.measured(worker, fingerprint(chosen), path)
    if found.is_disturbed:
        warn(DISTURBED)
    say(f"{found.gpu}: copy {found.copy_gbps:.0f} GB/s")
    for arithmetic, tflops in found.matmul_tflops.items():
        say(f"{found.gpu}: matmul {arithmetic} {tflops:.4g} TFLOP/s")
    say(f"Written to {path}.")


def by_timers(config: BenchmarksConfig, point: Point, worker: Supervisor) -> list[TimerRow]:
    """Time one point by every timer in turn, so that a drift of the device affects all timers alike. Warns
    about a point that can't be timed, and returns no rows for it."""
    is_gpu = worker.device.kind == "cuda"
    timers: tuple[TimerName, ...] = TIMERS if is_gpu else ("auto",)
    found = worker.readings(config.entry.loaded.where, point, timers, config.repeats, is_stamped=is_gpu)
    if found.error is not None:
        warn(f"{label(point)} at {extent(point)}: {found.error}")
    return [
        TimerRow(
            **point.to_dict(),
            timer=timer if is_gpu else timed[0].timing.timer,
            median_us=median(times),
            spread=(max(times) - min(times)) / median(times),
            cost_ms=median(one.took_ms for one in timed),
            cupti_us=None if found.stamped is None else found.stamped.duration_us,
        )
        for timer, timed in found.timed.items()
        for times in [[one.timing.median_us for one in timed]]
    ]


def on_inputs(
    config: BenchmarksConfig, point: Point, workers: Mapping[InputValues, Supervisor]
) -> list[InputsRow]:
    """Time one point on every kind of inputs in turn, so that a drift of the device affects all kinds alike.
    Raises UserError for a point that can't be timed."""
    where = config.entry.loaded.where
    burst: dict[str, list[float]] = {kind: [] for kind in workers}
    lasting: dict[str, list[Sustained]] = {kind: [] for kind in workers}
    for _ in range(config.repeats):
        for kind, worker in workers.items():
            outcome = worker.measure(where, point)
            if outcome.timing is None:
                raise UserError(f"{point} on {kind}: {outcome.status}: {outcome.error}.")
            burst[kind].append(outcome.timing.median_us)
            if worker.device.kind == "cuda":
                sustained = worker.extra(where, point, config.work_s).sustained
                lasting[kind] += [] if sustained is None else [sustained]
    return [
        InputsRow(
            point=point,
            inputs=kind,
            burst_us=tuple(burst[kind]),
            sustained_us=tuple(one.median_us for one in lasting[kind]) or None,
            sm_clock_mhz=lasting[kind][-1].sm_clock_mhz if lasting[kind] else None,
            power_w=lasting[kind][-1].power_w if lasting[kind] else None,
        )
        for kind in workers
    ]


def timers_table(rows: Sequence[TimerRow], title: str) -> TextTable:
    """Return a table with a line for each point and timer."""
    numbers = ("us", "spread", "cost ms", "CUPTI us", "off")
    lines = []
    for row in rows:
        cupti = ("–", "–")
        if row.cupti_us is not None:
            cupti = f"{row.cupti_us:.4g}", f"{row.median_us / row.cupti_us - 1:+.1%}"
        times = f"{row.median_us:.4g}", f"{row.spread:.2%}", f"{row.cost_ms:.1f}"
        lines.append([title_of(row.point), row.timer, *times, *cupti])
    return TextTable(title, ("problem", "timer", *numbers), lines, numbers)


def inputs_table(rows: Sequence[InputsRow], title: str) -> TextTable:
    """Return a table with a line for each point and kind of inputs. Each time has its ratio to the time on
    normal values."""
    numbers = ("burst us", "x normal", "sustained us", "x normal", "MHz", "W")
    normal = {row.point: row for row in rows if row.inputs == "normal"}
    lines = []
    for row in rows:
        other = normal[row.point]
        times = [*_ratio(row.burst_us, other.burst_us), *_ratio(row.sustained_us, other.sustained_us)]
        state = number(row.sm_clock_mhz), number(row.power_w)
        lines.append([title_of(row.point), row.inputs, *times, *state])
    return TextTable(title, ("problem", "inputs", *numbers), lines, numbers)


def _ratio(times: tuple[float, ...] | None, others: tuple[float, ...] | None) -> tuple[str, str]:
    if times is None or others is None:
        return "", ""
    return number(median(times)), f"{median(times) / median(others):.3f}"


if __name__ == "__main__":
    sys.argv[1:] = positional(sys.argv[1:], "benchmark")
    run_stage("benchmarks", BenchmarksConfig, run)
