"""Publish: results to MLflow. ``python -m pipeline.publish [kernel=softmax] [tracking=server]``.

An experiment a kernel; in it a parent run for each GPU (``softmax @ nvidia-h200``) and below it a child run
for each configuration, with ``size`` as the step of its metrics, so that the UI draws GB/s against size. Rows
other than the kernel's own are part of a configuration. The store shows what the ledgers hold now, and all of
it can be made again from them.
"""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.point import Point
from rich import box
from rich.progress import Progress
from rich.table import Table

from pipeline import UserError
from pipeline.command.config import PublishConfig, console, run_stage
from pipeline.machine.device import TOLD, Environment
from pipeline.reporting import mlflow_store as tracking
from pipeline.reporting.mlflow_store import CHANGES, Change, Run, Store, Sweep, TrackerError, Value
from pipeline.reporting.why import longest, native
from pipeline.store import evidence, results
from pipeline.store.ceilings import Ceilings
from pipeline.store.evidence import Evidence
from pipeline.store.record import Measurement
from pipeline.store.results import Results, axes

TIMED = ("median_us", "p20_us", "p80_us", "min_us", "rel_ci", "gbps", "tflops", "ceiling_fraction")
STATE = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")
ERRORS = ("max_abs_err", "max_rel_err")
"""The fields of a ledger row that become metrics, where they have a value."""

RESOURCES = ("registers", "shared", "occupancy")
COUNTED = (
    *("memory_throughput_pct", "compute_throughput_pct", "dram_throughput_pct", "dram_gbps"),
    *("dram_read_bytes", "dram_write_bytes", "l1_hit_pct", "l2_hit_pct"),
    *("achieved_occupancy_pct", "theoretical_occupancy_pct", "waves_per_sm", "local_bytes"),
    *("sectors_per_load", "sectors_per_store", "estimated_speedup_pct", "runtime_improvement_us"),
)
"""The fields of rows of generated code and of counters that become metrics; beside them stands what ncu's row
calls duration_us, as ``counted_us``."""

BESIDE = {".ptx", ".sass", ".ttgir"}
"""Texts that a listing shows already; they stay beside it and are not uploaded."""

FAILED = {"incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout"}
"""The statuses of a point that should have worked."""

NOTE_LENGTH = 4000
"""Characters of notes that a tag takes with certainty."""


@dataclass(frozen=True)
class Published:
    """The store that shows the results, and the ids of the experiments that do."""

    uri: str
    experiments: tuple[str, ...]


def publish(config: PublishConfig) -> None:
    """Log all results to the configured store and say how to look at them.

    Raises UserError when the input is not there or the store can't be used.
    """
    published = publish_quietly(config)
    if published is not None:
        say(how_to_open(published))


def publish_quietly(config: PublishConfig) -> Published | None:
    """Log all results to the configured store; None, after a sentence, when there is nothing to log."""
    if config.tracking.name == "none":
        say("tracking=none: nothing is published; tracking=local or tracking=server would do it.")
        return None
    sweeps = read(config)
    if not sweeps:
        say(f"{config.input} holds no measurements yet: nothing to publish. `dvc repro` makes some.")
        return None
    uri = tracking.store_of(config.tracking.uri)
    try:
        with tracking.opened(uri, say=say) as store:
            return Published(uri, log(store, sweeps))
    except TrackerError as error:
        again = shlex.join(["python", "-m", "pipeline.publish", *sys.argv[1:]])
        raise UserError(
            f"can't publish to {tracking.public(uri)}: {error}. Nothing measured is lost, "
            f"it lies in {config.input}; once the store can be used, run: {again}"
        ) from error


def say(sentence: str) -> None:
    """A line for the user, never broken, so that a link or a command in it can be copied."""
    console.print(sentence, soft_wrap=True, highlight=False, markup=False)


def read(config: PublishConfig) -> list[Sweep]:
    """The sweeps to show, one a ledger. Raises UserError for an input or a kernel that is not there."""
    if not config.input.is_dir():
        raise UserError(
            f"input={config.input} is not there; `dvc repro` makes results, input=FOLDER names others."
        )

    def warn(sentence: str) -> None:
        print(f"warning: {sentence}", file=sys.stderr)

    loaded = results.load(config.input, warn)
    found = evidence.load(config.input, warn)
    wanted = config.kernel and config.kernel.name
    if wanted is not None and loaded.kernels and wanted not in loaded.kernels:
        raise UserError(
            f"{config.input} holds no measurements of {wanted}, only of {', '.join(loaded.kernels)}."
        )
    ledgers = itertools.groupby(loaded.measurements, key=lambda row: (row.point.kernel, row.origin.gpu))
    return [
        sweep(
            list(rows),
            loaded,
            files(config, kernel, gpu, loaded.kernels),
            explained(found, kernel, gpu),
        )
        for (kernel, gpu), rows in ledgers
        if wanted in (None, kernel)
    ]


def sweep(
    rows: Sequence[Measurement],
    loaded: Results,
    artifacts: dict[str, Path],
    reasons: Mapping[str, Mapping[str, float]],
) -> Sweep:
    """What MLflow shows of one ledger; ``reasons`` are the metrics that explain a measurement, by its key."""
    gpu = rows[0].origin.gpu
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(configuration(row), []).append(row)
    machine = _machine(loaded.environments.get(gpu), loaded.ceilings.get(gpu))
    return Sweep(
        points=len(rows),
        parent=_run(rows, "", machine, _summary(rows)),
        children=tuple(
            _run(
                group,
                name,
                _axes(group),
                tuple(value for row in group for value in (*_values(row), *_reasons(row, reasons))),
            )
            for name, group in groups.items()
        ),
        files=artifacts,
    )


def configuration(row: Measurement) -> str:
    """A configuration as people write it: ``triton_online bfloat16 1024x8w``, or ``... 1024x8w 37 rows``."""
    count = row.point.rows
    rows = "" if count is None else f"{count} row{'s' * (count != 1)}"
    return " ".join(filter(None, [row.point.provider, row.point.dtype, axes(row.row()), rows]))


def _run(
    rows: Sequence[Measurement], configuration: str, params: dict[str, str], values: tuple[Value, ...]
) -> Run:
    """The run of a configuration, or of the whole ledger where that is empty."""
    kernel, gpu = rows[0].point.kernel, rows[0].origin.gpu
    newest = max((row.origin for row in rows), key=lambda origin: origin.measured_at)
    times = [_milliseconds(row) for row in rows]
    statuses = Counter(row.outcome.status for row in rows)
    tags = {
        "kind": "config" if configuration else "sweep",
        "kernel": kernel,
        "gpu": gpu,
        "commit": newest.commit,
        "dirty": str(any(row.origin.dirty for row in rows)).lower(),
        "environment": newest.environment,
        "image": newest.image or "",
        "base_image": newest.base_image or "",
        "status": next(iter(statuses)) if len(statuses) == 1 else "mixed",
        "points": ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
        "notes": "; ".join(_notes(rows))[:NOTE_LENGTH],
        # MLflow's own names: the columns Source and Version.
        "mlflow.source.name": "pipeline.sweep",
        "mlflow.source.git.commit": newest.commit,
    }
    return Run(
        identity="/".join(filter(None, (kernel, gpu, configuration))),
        name=f"{configuration or kernel} @ {gpu}",
        failed=FAILED.issuperset(statuses),
        started_ms=min(times),
        ended_ms=max(times),
        tags={key: value for key, value in tags.items() if value},
        params={"kernel": kernel, "gpu": gpu, **params},
        values=values,
    )


def _milliseconds(row: Measurement) -> int:
    return round(row.origin.measured_at.timestamp() * 1000)


def _notes(rows: Iterable[Measurement]) -> list[str]:
    """Why points have no time, or one not to be trusted; a reason that many points share is said once."""
    reasons: dict[str, list[Point]] = {}
    for row in rows:
        state = row.outcome.state
        if row.outcome.error:
            reasons.setdefault(f"{row.outcome.status}: {row.outcome.error}", []).append(row.point)
        elif row.outcome.status == "verified":
            reasons.setdefault("right, but this machine can't time it", []).append(row.point)
        elif state and not state.valid:
            reasons.setdefault(f"not to be trusted: {state.invalid_reason}", []).append(row.point)
    notes = []
    for reason, points in reasons.items():
        ordered = sorted(points, key=lambda point: (point.size, point.rows or 0))
        notes.append(f"size {', '.join(dict.fromkeys(point.extent for point in ordered))}: {reason}")
    return notes


def _axes(rows: Sequence[Measurement]) -> dict[str, str]:
    point = rows[0].point
    timings = [row.outcome.timing for row in rows if row.outcome.timing]
    params = {"provider": point.provider, "dtype": point.dtype, **point.axes()}
    if point.rows is not None:
        params["rows"] = point.rows
    for name in ("timer", "cache"):
        params |= (
            {name: " and ".join(sorted({getattr(timing, name) for timing in timings}))} if timings else {}
        )
    return {name: str(value) for name, value in params.items()}


def _machine(environment: Environment | None, ceilings: Ceilings | None) -> dict[str, str]:
    values = environment.model_dump(exclude={"gpu", *TOLD}, exclude_none=True) if environment else {}
    if ceilings:
        values["ceiling_copy_gbps"] = ceilings.copy_gbps
        values |= {f"ceiling_{dtype}_tflops": tflops for dtype, tflops in ceilings.matmul_tflops.items()}
    return {name: str(value) for name, value in values.items()}


def _values(row: Measurement) -> list[Value]:
    """A point's numbers: its times only if it was timed, its errors only if it was right."""
    flat = row.row()
    names = {"ok": (*TIMED, *STATE, *ERRORS), "verified": ERRORS}.get(row.outcome.status, ())
    at = _milliseconds(row)
    return [
        Value(name, float(flat[name]), row.point.size, at)
        for name in names
        if flat[name] is not None and math.isfinite(flat[name])
    ]


def _reasons(row: Measurement, reasons: Mapping[str, Mapping[str, float]]) -> list[Value]:
    """What explains a point, at its size."""
    at = _milliseconds(row)
    return [Value(name, value, row.point.size, at) for name, value in reasons.get(row.key, {}).items()]


def explained(found: Evidence, kernel: str, gpu: str) -> dict[str, dict[str, float]]:
    """By the key of a measurement the metrics that explain it: what its code asks for, what it launches, and
    what was counted of its longest kernel."""
    metrics: dict[str, dict[str, float]] = {}
    for key, row in native(found.code.get((kernel, gpu), ())).items():
        assert row.mix is not None, "only counted code is native"
        numbers = {name: getattr(row, name) for name in RESOURCES} | {"spilled_bytes": row.mix.spilled_bytes}
        metrics[key] = {name: float(value) for name, value in numbers.items() if value is not None}
    for profile in found.profiles.get((kernel, gpu), ()):
        numbers = {"device_launches": profile.launches, "profiled_device_us": profile.device_us}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        if profile.key is not None and known:
            metrics[profile.key] = metrics.get(profile.key, {}) | known
    for key, counted in longest(found.counters.get((kernel, gpu), ())).items():
        numbers = {name: getattr(counted, name) for name in COUNTED} | {"counted_us": counted.duration_us}
        if "registers" not in metrics.get(key, {}):
            # No code of it was taken apart, as of torch's own kernels; ncu sees the same of its launch.
            held = counted.theoretical_occupancy_pct
            numbers |= {"registers": counted.registers, "occupancy": None if held is None else held / 100}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        metrics[key] = metrics.get(key, {}) | known
    return metrics


def _summary(rows: Sequence[Measurement]) -> tuple[Value, ...]:
    """What the parent shows: the best that a configuration reached at each size with the kernel's own number
    of rows, and how the points ended."""
    at = max(map(_milliseconds, rows))
    counts = Counter(f"points_{row.outcome.status}" for row in rows)
    points = [Value(name, count, 0, at) for name, count in {"points": len(rows), **counts}.items()]
    best: dict[tuple[str, int], Value] = {}
    for value in itertools.chain.from_iterable(_best_of(row) for row in rows if row.point.rows is None):
        best[value.key, value.step] = max(best.get((value.key, value.step), value), value)
    return (*sorted(points), *sorted(best.values()))


def _best_of(row: Measurement) -> list[Value]:
    """A point's candidates for the best at its size."""
    found = {value.key: value for value in _values(row)}
    best = [found[name] for name in ("gbps", "ceiling_fraction") if name in found]
    return best + [
        value._replace(key=f"best_gbps_{row.point.dtype}") for value in best if value.key == "gbps"
    ]


def files(config: PublishConfig, kernel: str, gpu: str, kernels: Sequence[str]) -> dict[str, Path]:
    """The files that belong to one ledger, by their path among the parent run's artifacts.

    Of the reports, those that no other kernel's name is part of the path of.
    """
    found = {
        f"results/{path.relative_to(config.input)}": path
        for path in (
            results.ledger_path(config.input, kernel, gpu),
            results.config_path(config.input, kernel, gpu),
            results.environment_path(config.input, gpu),
            results.ceilings_path(config.input, gpu),
            results.build_path(config.input, kernel, gpu),
            results.codegen_path(config.input, kernel, gpu),
            results.profile_path(config.input, kernel, gpu),
            results.counters_path(config.input, kernel, gpu),
        )
    }
    if config.artifacts:
        for kind in ("profile", "counters", "codegen"):
            folder = config.artifacts / kind / kernel
            for path in sorted([*folder.glob(f"{gpu}.*"), *(folder / gpu).rglob("*")]):
                if path.suffix not in BESIDE:
                    found[f"artifacts/{kind}/{path.name}"] = path
    if config.reports:
        for path in sorted(config.reports.rglob("*")):
            place = path.relative_to(config.reports)
            owners = {part.split(".")[0].split("-")[0] for part in place.parts} & set(kernels)
            if owners <= {kernel} and not any(part.startswith(".") for part in place.parts):
                found[f"reports/{place}"] = path
    return {name: path for name, path in found.items() if path.is_file()}


def log(store: Store, sweeps: Sequence[Sweep]) -> tuple[str, ...]:
    """Make the store show the sweeps and print what that took. Returns the ids of the experiments."""
    experiments: dict[str, str] = {}
    done: list[tuple[Sweep, Counter[Change]]] = []
    began = time.monotonic()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(1 + len(one.children) for one in sweeps))
        for one in sweeps:
            progress.update(task, description=one.parent.name)
            kernel = one.parent.params["kernel"]
            if kernel not in experiments:
                experiments[kernel] = store.experiment(kernel)
            changes = store.publish(experiments[kernel], one, tick=lambda: progress.advance(task))
            done.append((one, changes))
    console.print(_table(done), highlight=False)
    seconds = time.monotonic() - began
    rows = sum(one.points for one, _ in done)
    say(f"{rows} rows in {seconds:.1f} s, {rows / seconds:.0f} rows/s.")
    return tuple(experiments.values())


def _table(done: Sequence[tuple[Sweep, Counter[Change]]]) -> Table:
    """What was done for each ledger; runs were rarely removed, so that is told only where it happened."""
    columns = [name for name in CHANGES if name != "removed" or any(changes[name] for _, changes in done)]
    table = Table("experiment", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("gpu", overflow="fold")
    for header in ("points", "runs", *columns):
        table.add_column(header, justify="right")
    for one, changes in done:
        counts = (one.points, 1 + len(one.children), *(changes[name] for name in columns))
        table.add_row(one.parent.params["kernel"], one.parent.params["gpu"], *map(str, counts))
    return table


def how_to_open(published: Published) -> str:
    """One line that says where the runs can be seen."""
    uri, experiments = published.uri, published.experiments
    if tracking.is_server(uri):
        return f"Open {tracking.page(uri, experiments)}"
    command = "make ui"
    if uri != tracking.DEFAULT_STORE:
        command = shlex.join(["python", "-m", "pipeline.ui", *sys.argv[1:]])
    return f"Run `{command}` and open {tracking.page('http://127.0.0.1:5000', experiments)}"


if __name__ == "__main__":
    run_stage("publish", PublishConfig, publish)
