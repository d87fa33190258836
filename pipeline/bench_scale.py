"""What a thousand GPUs, and a million rows, ask of this pipeline itself.

    python -m pipeline.bench_scale
    python -m pipeline.bench_scale only=sweep gpus=50 points=2000
    python -m pipeline.bench_scale only=[report,publish] rows=[10000,100000]

Nothing is measured on a device. ``sweep`` simulates one driver of many GPUs of several models, which all
measure the same grid: agenda, schedule and ledgers are those of a real sweep, and the GPUs sleep on a clock
of their own. It prints what the driver takes for a row, how much of their time the GPUs wait, and the memory.
``report`` and ``publish`` run these commands on ledgers of rows that were made up, and print their seconds
and memory.
"""

from __future__ import annotations

import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from rich.console import Console
from rich.table import Table

from pipeline import UserError
from pipeline.command.options import BenchScaleConfig, SweepConfig, TrackingConfig
from pipeline.command.run import console, run_stage, say
from pipeline.execution import synthetic
from pipeline.execution.benchmark import footprint
from pipeline.execution.simulation import Simulated, SimulatedTeam, simulate
from pipeline.execution.team import Here
from pipeline.machine.device import cpu_threads
from pipeline.points.frozen import digest
from pipeline.points.plan import Plan, Target, plan
from pipeline.points.point import Point
from pipeline.points.problems import SIZE
from pipeline.reporting.numbers import print_wide
from pipeline.reporting.terminal import Progress
from pipeline.store import results
from pipeline.store.ceilings import Ceilings
from pipeline.store.files import write_atomically
from pipeline.store.record import Outcome
from pipeline.store.rows import encode
from pipeline.store.runs import Heading, Recorder
from pipeline.sweep import Sweep
from pipeline.timing.settings import TimingSettings

SIZES_APART = 64
"""Between the sizes of a grid."""

MOST_IDLE = 0.05
"""The share of their time that GPUs may wait for their driver."""


def run(config: BenchScaleConfig) -> None:
    """Make, run, print."""
    with tempfile.TemporaryDirectory(dir=config.scratch) as folder:
        if "sweep" in config.only:
            found = swept(config, Path(folder) / "sweep")
            # Of Linux, in KiB.
            memory = 1024 * getrusage(RUSAGE_SELF).ru_maxrss
            for line in told(config, found, memory):
                say(line)
        table = Table(title=f"{config.kernel}, {config.models} models, rows that were made up")
        for heading in ("command", "rows", "MB of ledgers", "s", "CPU s", "us a row", "MB of memory"):
            table.add_column(heading, justify="left" if heading == "command" else "right")
        for rows in config.rows if {"report", "publish"} & set(config.only) else ():
            output = Path(folder) / f"rows-{rows}"
            size = filled(config, rows, output)
            for command, words in commands(config, output, rows):
                taken = footprint(words)
                seconds, used = f"{taken.seconds:.1f}", f"{taken.bytes / 1e6:,.0f}"
                say(f"{command} of {rows:,} rows: {seconds} s, {used} MB of memory")
                cells = (f"{size / 1e6:,.0f}", seconds, f"{taken.cpu_seconds:.1f}")
                table.add_row(command, f"{rows:,}", *cells, f"{1e6 * taken.seconds / rows:.0f}", used)
        if table.rows:
            print_wide(console, table)


def commands(config: BenchScaleConfig, output: Path, rows: int) -> list[tuple[str, list[str]]]:
    """The commands that are timed on a folder of so many rows, with the name that a table gives each."""
    reports = output.with_name(f"{output.name}-reports")
    found = []
    if "report" in config.only:
        words = ["pipeline.report", f"input={output}", f"output={reports}", "device=cpu"]
        found.append(("report", words))
    if "publish" in config.only and rows <= config.published:
        words = ["pipeline.publish", f"input={output}", "runs=null", f"reports={reports}", "artifacts=null"]
        words.append(f"tracking.uri=sqlite:///{output}.db")
        found += [("publish", words), ("publish again", words)]
    return found


# The sweep


def swept(config: BenchScaleConfig, output: Path) -> Simulated:
    """Simulate one driver of sweeps on every model at once; each measures all points of the grid."""
    wanted = grid(config, config.points)
    count = ceil(config.gpus / config.models)
    quiet = Console(quiet=True)
    sweeps, teams = [], []
    for model in range(config.models):
        sweep = made(config, model, wanted, output, count)
        limits = ceilings_of(sweep, model)
        agenda = sweep.missing()
        progress = Progress(quiet, sweep.slug, agenda.total)
        schedule = sweep.schedule(agenda.due, agenda, count)
        keep = partial(sweep.report, agenda, limits, progress)
        teams.append(SimulatedTeam(schedule, sweep.devices, partial(outcome_of, sweep, limits), keep))
        sweeps.append((sweep, limits))
    with ExitStack() as stack:
        for sweep, limits in sweeps:
            heading = Heading(
                run=sweep.run,
                kernel=sweep.entry.name,
                environment=sweep.environment,
                ceilings=limits,
                provenance=sweep.provenance,
            )
            sweep.recorder = stack.enter_context(Recorder(sweep.output, heading))
        found = simulate(teams, partial(seconds_of, config.point_s))
        for sweep, _ in sweeps:
            sweep.finish()
    return found


def made(config: BenchScaleConfig, model: int, wanted: Plan, output: Path, count: int) -> Sweep:
    """A sweep on so many GPUs of a model, as the command makes it."""
    options = SweepConfig(
        kernel=config.kernel,
        preset=config.preset,
        workload=None,
        timing=TimingSettings(),
        provider=None,
        output=output,
        seed=0,
        tracking=TrackingConfig(name="none", uri=None),
        device=("auto",),
        trials=None,
        seconds=None,
        ahead=1,
        replay=False,
        remeasure=False,
        audit="best",
        retry="passing",
        allow=None,
        debug=False,
        search="exhaustive",
        cluster=None,
        point_timeout_s=1.0,
        wait_s=None,
    )
    devices = [synthetic.device(model, index) for index in range(count)]
    sweep = Sweep(options, Here(devices, [], synthetic.environment(model)), wanted)
    sweep.note_run()
    return sweep


def ceilings_of(sweep: Sweep, model: int) -> Ceilings:
    """The limits of a model, in all arithmetics that the sweep's points have."""
    kernel = sweep.entry.loaded.kernel
    problems_ = {point.problem: point for point in sweep.plan.points}.values()
    names = (synthetic.work_of(kernel, point).operations for point in problems_)
    return synthetic.ceilings(model, frozenset(name for some in names for name in some))


def outcome_of(sweep: Sweep, limits: Ceilings, point: Point) -> Outcome:
    """What a GPU of these limits gives for a point."""
    return synthetic.outcome(point, synthetic.work_of(sweep.loaded.kernel, point), limits)


def seconds_of(mean: float, point: Point) -> float:
    """What a point takes on its GPU: evenly between half of the mean and one and a half."""
    return mean * random.Random(digest(point.model_dump())).uniform(0.5, 1.5)


def grid(config: BenchScaleConfig, count: int) -> Plan:
    """So many points of the kernel: every configuration that its providers declare, at as many sizes as that
    takes. Raises UserError where there are none."""
    sizes: list[int] = []
    wanted = Plan((), {})
    while len(wanted.points) < count:
        more = ceil(len(sizes) * (count / len(wanted.points) - 1)) if wanted.points else 1
        sizes += [SIZES_APART * (len(sizes) + number) for number in range(1, max(1, more) + 1)]
        wanted = plan(
            config.entry, config.preset.name, Target("cuda"), {SIZE: sizes}, config.provider, every=True
        )
        if not wanted.points:
            raise UserError(f"there is nothing to measure: {' '.join(wanted.refusals())}.")
    points = wanted.points[:count]
    return Plan(points, {point: wanted.workloads[point] for point in points})


# Rows that were made up


def filled(config: BenchScaleConfig, rows: int, output: Path) -> int:
    """Write ledgers of so many rows in all, one for each model, with what lies beside them. Returns their
    bytes."""
    wanted = grid(config, ceil(rows / config.models))
    with ProcessPoolExecutor(min(config.models, cpu_threads()), get_context("fork")) as processes:
        made_ = [processes.submit(_fill, config, model, wanted, output) for model in range(config.models)]
        return sum(one.result() for one in made_)


def _fill(config: BenchScaleConfig, model: int, wanted: Plan, output: Path) -> int:
    sweep = made(config, model, wanted, output, 1)
    limits = ceilings_of(sweep, model)
    assert sweep.provenance is not None, "made() noted it"
    sweep.ledger.note(sweep.provenance)
    lines = (
        encode(sweep.measurement(point, outcome_of(sweep, limits, point), sweep.devices[0], limits))
        for point in wanted.points
    )
    content = b"".join(lines)
    write_atomically(sweep.ledger.path, content)
    for path, one in (
        (results.environment_path(output, sweep.slug), sweep.environment),
        (results.ceilings_path(output, sweep.slug), limits),
    ):
        write_atomically(path, one.model_dump_json(indent=2).encode() + b"\n")
    return len(content)


# What is printed


def told(config: BenchScaleConfig, found: Simulated, memory: int) -> list[str]:
    """What the simulation says, in lines."""
    # Devices wait for one driver; with this mean time of a point it is busy for as long as MOST_IDLE allows.
    shortest = found.devices * found.row_s / (1 - MOST_IDLE)
    return [
        f"{found.devices} GPUs of {config.models} models, {config.points} points each, "
        f"{config.point_s:g} s a point on average: {found.rows} rows in {found.end_s:.0f} s by their clock.",
        f"  driver: {1e3 * found.row_s:.3f} ms a row, at most {1e3 * found.longest_s:.1f} ms, a core for "
        f"{1e3 * found.core_s / max(1, found.rows):.3f} ms of it, "
        f"busy for {found.waiting:.1%} of the time",
        f"  GPUs: idle for {found.idle:.2%} of it, with what each waits at the end",
        f"  memory: {memory / 1e6:,.0f} MB",
        f"  one driver is enough for so many GPUs down to {1e3 * shortest:.0f} ms a point",
    ]


if __name__ == "__main__":
    run_stage("bench_scale", BenchScaleConfig, run)
