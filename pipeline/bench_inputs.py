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
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median

from rich import box
from rich.table import Table

from pipeline import UserError
from pipeline.command.options import BenchInputsConfig
from pipeline.command.run import console, run_stage, say, warn
from pipeline.execution import sidecar_files
from pipeline.execution.protocol import InputValues
from pipeline.execution.supervisor import Supervisor
from pipeline.machine import device
from pipeline.machine.environment import fingerprint
from pipeline.machine.lock import DeviceLock
from pipeline.points.choice import of_provider
from pipeline.points.frozen import Record
from pipeline.points.notation import extent, label, words
from pipeline.points.plan import Target
from pipeline.points.point import Point
from pipeline.reporting.numbers import number, print_wide
from pipeline.store import results
from pipeline.store.files import write_atomically
from pipeline.store.turns import Sustained

KINDS: tuple[InputValues, ...] = ("normal", "integers", "zeros")


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
    # The folder of a CPU's own results stands in place of the folder above results/inputs.
    output = results.folder_for(config.output.parent, chosen.kind)
    with ExitStack() as stack:
        stack.enter_context(DeviceLock(chosen, config.wait_s, warn))
        workers = {
            kind: stack.enter_context(
                Supervisor(chosen, config.timing, config.seed, config.point_timeout_s, values=kind)
            )
            for kind in KINDS
        }
        canary = sidecar_files.canary_for(workers["normal"], fingerprint(chosen), output)
        for worker in workers.values():
            worker.canary = canary
        for point in points:
            with console.status(f"{point} …"):
                rows += measured(config, point, workers)
    print_wide(console, table(rows, f"{config.entry.name}/{points[0].provider} on {chosen.slug}"))
    path = output / config.output.name / config.entry.name / f"{chosen.slug}.json"
    write_atomically(path, (json.dumps([row.model_dump() for row in rows], indent=1) + "\n").encode())
    say(f"Rows: {path}")


def measured(
    config: BenchInputsConfig, point: Point, workers: Mapping[InputValues, Supervisor]
) -> list[InputsRow]:
    """One point on every kind of inputs, these in turn so that a drift of the device reaches all alike.
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
