"""What other inputs would show: the same call on normal values, on small integers and on zeros.

    python -m pipeline.bench_inputs kernel=matmul size=[4096,8192] dtype=bfloat16
    python -m pipeline.bench_inputs kernel=matmul provider=triton_tiled size=4096 dtype=bfloat16
    python -m pipeline.bench_inputs kernel=softmax size=16384 repeats=5

A GPU takes the more power the more bits change, and where the power limit holds it, it is faster on zeros.
Sweeps measure on normal values. Here each kind is timed in turn, in a burst and, on a GPU, after seconds of
the same work. Inputs that are no floating-point numbers stay as the kernel makes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from statistics import median

import torch
from rich import box
from rich.table import Table

from kernels import Tensors
from pipeline.command.options import BenchInputsConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution import instance
from pipeline.execution.endurance import sustained
from pipeline.execution.instance import Instance
from pipeline.machine import device
from pipeline.machine.lock import DeviceLock
from pipeline.points.choice import of_provider
from pipeline.points.frozen import Record
from pipeline.points.notation import extent, label, words
from pipeline.points.plan import Target
from pipeline.points.point import Point
from pipeline.reporting.numbers import number, print_wide
from pipeline.store import results
from pipeline.store.ceilings import NO_OVERHEAD
from pipeline.store.files import write_atomically
from pipeline.timing.statistics import quantile
from pipeline.timing.stopwatch import Stopwatch
from pipeline.timing.timers import Rotation
from pipeline.timing.timers.overhead import calibrate


def _integers(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """From -4 to 4, which every floating-point dtype holds."""
    return torch.randint(-4, 5, x.shape, generator=generator, device=x.device, dtype=torch.float32)


def _zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(x.shape, device=x.device)


KINDS: Mapping[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None] = {
    "normal": None,
    "integers": _integers,
    "zeros": _zeros,
}
"""Values in place of those that the kernel makes; None leaves these."""


class InputsRow(Record):
    """A point on one kind of inputs: the medians of the repeats in microseconds, in a burst and after seconds
    of the same work (None on a CPU), and the clock and the power then."""

    point: Point
    inputs: str
    burst_us: tuple[float, ...]
    sustained_us: tuple[float, ...] | None
    sm_clock_mhz: int | None
    power_w: float | None


def run(config: BenchInputsConfig) -> None:
    """Time every point on every kind of inputs, print the table and write the rows."""
    chosen = device.resolve(config.device)
    target = Target(chosen.kind, device.capabilities(chosen))
    points = of_provider(config.entry, config.preset.name, config.provider, config.pin, target)
    rows = []
    with DeviceLock(chosen, config.wait_s, warn):
        if chosen.uuid is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = chosen.uuid
        stopwatch = Stopwatch(torch.device(chosen.kind), config.timing)
        stopwatch.overhead = calibrate() if chosen.kind == "cuda" else NO_OVERHEAD
        stopwatch.warm_up()
        for point in points:
            with console.status(f"{point} …"):
                rows += measure(config, point, stopwatch)
    print_wide(console, table(rows, f"{config.entry.name}/{points[0].provider} on {chosen.slug}"))
    # Of outputs/inputs the folder above is what a CPU's own stands in place of.
    output = results.folder_for(config.output.parent, chosen.kind) / config.output.name
    path = output / config.entry.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    say(f"Rows: {path}")


def measure(config: BenchInputsConfig, point: Point, stopwatch: Stopwatch) -> list[InputsRow]:
    """One point on every kind of inputs, these in turn so that a drift of the device reaches all alike."""
    found = instance.standalone(config.entry.loaded.where, point)
    made = found.inputs(stopwatch.device, config.seed)
    kinds = {name: filled(made, name, config.seed) for name in KINDS}
    burst: dict[str, list[float]] = {name: [] for name in kinds}
    lasting: dict[str, list[float]] = {name: [] for name in kinds}
    clocks: dict[str, tuple[int | None, float | None]] = dict.fromkeys(kinds, (None, None))
    for _ in range(config.repeats):
        for name, inputs in kinds.items():
            burst[name].append(burst_us(found, inputs, stopwatch))
            if stopwatch.device.type == "cuda":
                rotation = Rotation(found.call, (inputs,), found.loaded.kernel.in_place)
                bytes_ = instance.bytes_of(found, inputs)
                last = sustained(rotation, None, bytes_, config.work_s, stopwatch.overhead)
                lasting[name].append(last.median_us)
                clocks[name] = last.sm_clock_mhz, last.power_w
    return [
        InputsRow(
            point=point,
            inputs=name,
            burst_us=tuple(burst[name]),
            sustained_us=tuple(lasting[name]) or None,
            sm_clock_mhz=clocks[name][0],
            power_w=clocks[name][1],
        )
        for name in kinds
    ]


def burst_us(found: Instance, inputs: Tensors, stopwatch: Stopwatch) -> float:
    """Microseconds of a call, as a sweep times it."""
    bytes_ = instance.bytes_of(found, inputs)
    samples, _ = stopwatch.time(found.call, inputs, bytes_, found.loaded.kernel.in_place)
    return quantile(sorted(samples.samples_us), 0.5)


def filled(inputs: Tensors, kind: str, seed: int) -> Tensors:
    """Copies of inputs in which those of floating-point numbers hold values of a kind."""
    values = KINDS[kind]
    copies = tuple(x.clone() for x in inputs)
    if values is not None:
        generator = torch.Generator(copies[0].device).manual_seed(seed)
        for x in copies:
            if x.is_floating_point():
                x.copy_(values(x, generator))
    return copies


def table(rows: list[InputsRow], title: str) -> Table:
    """A line a point and kind, each time beside that on normal values."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    headings = ("problem", "inputs", "burst us", "x normal", "sustained us", "x normal", "MHz", "W")
    for heading in headings:
        shown.add_column(heading, justify="left" if heading in ("problem", "inputs") else "right")
    normal = {row.point: row for row in rows if row.inputs == "normal"}
    for row in rows:
        beside = normal[row.point]
        place = " ".join(filter(None, [label(row.point), words(row.point), extent(row.point)]))
        times = [*_beside(row.burst_us, beside.burst_us), *_beside(row.sustained_us, beside.sustained_us)]
        shown.add_row(place, row.inputs, *times, number(row.sm_clock_mhz), number(row.power_w))
    return shown


def _beside(times: tuple[float, ...] | None, others: tuple[float, ...] | None) -> tuple[str, str]:
    if times is None or others is None:
        return "", ""
    return number(median(times)), f"{median(times) / median(others):.3f}"


if __name__ == "__main__":
    run_stage("bench_inputs", BenchInputsConfig, run)
