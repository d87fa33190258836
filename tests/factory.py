"""Synthetic results that are valid and the same on every run, in the form that a sweep leaves.

``grid`` makes measurements. ``write_results`` writes them where the stages look for them, with an
environment, ceilings, a resolved configuration and a build report for each GPU. A kernel that does not
exist has problems with the dimensions ``n`` and ``dtype``.
"""

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from kernel_pipeline import loading, problems
from kernel_pipeline.contract import ITEM_BYTES, Work
from kernel_pipeline.declared import Value, Variable
from kernel_pipeline.files import write_atomically
from kernel_pipeline.records.base import Values, digest
from kernel_pipeline.records.ceilings import Canary, Ceilings, rate
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.fields import TIME_DIGITS, rounded
from kernel_pipeline.records.measurement import Measurement, Origin, Outcome, Parts, State, Status, Timing
from kernel_pipeline.records.point import Point, order
from kernel_pipeline.toolchain.resources import BuildReport
from pipeline.keys.identity import Identity
from pipeline.reporting.headlines import entry_of
from pipeline.store import finals, held_out, provenance, results, turns
from pipeline.store.finals import Against, Final, written_by
from pipeline.store.held_out import HeldOut, HeldOutProblem, Other
from pipeline.store.rows import encode
from pipeline.store.runs import Heading, Recorder
from pipeline.store.turns import Turn

H200 = "nvidia-h200"
H100 = "nvidia-h100-80gb-hbm3"
CPU = "cpu-amd-epyc"
COPY_GBPS = {H200: 4270.0, H100: 3000.0, CPU: 40.0}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MEASURED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RUN = "20261121T120000Z-abcdef"
SETTINGS = "7" * 16

EFFICIENCY = {
    "torch": 0.6,
    "torch_compile": 0.85,
    "cpp": 0.5,
    "triton_row": 0.9,
    "triton_online": 0.92,
    "cuda": 0.94,
    "liger": 0.8,
    "quack": 0.95,
}
"""The fraction of the copy rate that each provider reaches at large sizes."""


def environment(gpu: str = H200) -> Environment:
    """Return a plausible environment. A slug that starts with ``cpu-`` stands for a CPU."""
    kind = "cpu" if gpu.startswith("cpu-") else "cuda"
    return Environment(
        gpu=gpu,
        name=gpu.removeprefix("cpu-").replace("-", " ").upper(),
        kind=kind,
        compute_capability="9.0" if kind == "cuda" else None,
        memory_mib=143771 if kind == "cuda" else 65536,
        driver="580.82.07" if kind == "cuda" else None,
        cuda="13.0" if kind == "cuda" else None,
        torch="2.11.0",
        triton="3.6.0",
        python="3.12",
        nvcc="13.0.88" if kind == "cuda" else None,
        cxx="c++ (Debian 14.2.0-19) 14.2.0",
        cpu="AMD EPYC",
        cpu_threads=16,
        platform="Linux-x86_64",
    )


def ceilings(gpu: str = H200) -> Ceilings:
    """Return ceilings that match ``environment(gpu)``."""
    copy = COPY_GBPS.get(gpu, 2000.0)
    tflops = {"float32": copy / 80, "tf32": copy / 12, "bfloat16": copy / 6, "float16": copy / 6}
    where = environment(gpu)
    return Ceilings(
        gpu=gpu,
        environment=where.of_device,
        copy_gbps=copy,
        matmul_tflops=tflops,
        canary=Canary(fast_us=1.63, duration_us=1.632) if where.kind == "cuda" else None,
    )


def timing(median_us: float, samples: int = 20) -> Timing:
    """Return a timing whose samples lie within 2 % of the median."""
    spread = [median_us * (1 + 0.02 * (2 * i / (samples - 1) - 1)) for i in range(samples)]
    return Timing(
        timer="graph",
        cache="cold",
        median_us=median_us,
        p20_us=spread[samples // 5],
        p80_us=spread[-1 - samples // 5],
        min_us=spread[0],
        rel_ci=0.004,
        n_samples=samples,
        samples_us=tuple(spread),
    )


def declared_parameters(kernel: str, provider: str) -> dict[str, Variable]:
    """Return a provider's parameters, or none if the provider does not exist."""
    entry = entry_of(kernel)
    try:
        return {} if entry is None else entry.loaded.kernel.provider(provider).variables()
    except KeyError:
        return {}


def made_point(
    kernel: str = "softmax",
    provider: str = "torch",
    size: int = 1024,
    dtype: str = "float32",
    **named: Value | None,
) -> Point:
    """Return a point of a size, dimensions and parameters. Those that are missing or None have their
    defaults."""
    entry = entry_of(kernel)
    given: dict[str, Value] = {name: value for name, value in named.items() if value is not None}
    if entry is None:
        return Point(
            kernel=kernel,
            provider=provider,
            problem=Values({"n": size, "dtype": dtype}),
            parameters=Values(given),
        )
    declared = entry.loaded.kernel
    dimensions = declared.dimensions()
    of_problem = {name: value for name, value in given.items() if name in dimensions}
    problem = problems.make(
        declared.problem, {**dict.fromkeys(declared.size, size), "dtype": dtype, **of_problem}
    )
    parameters: dict[str, Value] = {
        name: variable.default
        for name, variable in declared_parameters(kernel, provider).items()
        if variable.default is not None
    }
    parameters |= {name: value for name, value in given.items() if name not in dimensions}
    return Point(
        kernel=kernel, provider=provider, problem=problems.identity_of(problem), parameters=Values(parameters)
    )


def work_of(point: Point) -> Work:
    """Return the least work of a point's problem. For a kernel that does not exist, it is a copy of ``n``
    elements."""
    entry = entry_of(point.kernel)
    if entry is None:
        size = int(point.problem["n"])
        return Work(2 * size * ITEM_BYTES[str(point.problem["dtype"])], {"float32": size})
    declared = entry.loaded.kernel
    return declared.work(problems.make(declared.problem, point.problem))


def time_us(point: Point, gpu: str) -> float:
    """Return a plausible time: the launch overhead plus the time for the bytes or the operations,
    whichever is longer, at the provider's fraction of the ceiling. Wide blocks are fastest."""
    work, limits = work_of(point), ceilings(gpu)
    share = EFFICIENCY.get(point.provider, 0.7)
    share *= 1 - 0.04 * abs(int(point.parameters.get("block_size", 1024)).bit_length() - 11)
    share *= 1 - 0.03 * abs(int(point.parameters.get("num_warps", 8)).bit_length() - 4)
    moving = work.bytes / limits.copy_gbps / 1e3
    computing = sum(n / limits.matmul_tflops[name] for name, n in work.operations.items()) / 1e6
    return 2.5 + max(moving, computing) / share


def measurement(
    kernel: str = "softmax",
    provider: str = "torch",
    size: int = 1024,
    dtype: str = "float32",
    *,
    workload: str | None = None,
    gpu: str = H200,
    status: Status = "ok",
    error: str | None = None,
    median_us: float | None = None,
    commit: str = COMMIT,
    dirty: bool = False,
    source: str = "5" * 16,
    measurement: str = "6",
    settings: str = SETTINGS,
    cache: str = "cold",
    run: str | None = None,
    measured_at: datetime = MEASURED_AT,
    valid: bool = True,
    throttle: str | None = None,
    **named: Value | None,
) -> Measurement:
    """Return one measurement. Arguments that are left out get plausible values that agree with the others.
    ``named`` are dimensions and parameters: ``rows=37``, ``block_size=512``."""
    point = made_point(kernel, provider, size, dtype, **named)
    right = status in ("ok", "verified")
    median = rounded(median_us or time_us(point, gpu), TIME_DIGITS) if status == "ok" else None
    on_gpu = not gpu.startswith("cpu-")
    state = State(
        sm_clock_mhz=1980 if on_gpu else None,
        mem_clock_mhz=3201 if on_gpu else None,
        temperature_c=41 if on_gpu else None,
        power_w=322.5 if on_gpu else None,
        throttle=throttle,
        valid=valid and throttle is None,
        invalid_reason=f"the GPU was held back while it was timed, twice: {throttle}"
        if throttle
        else None
        if valid
        else "the clock moved by 8 % while it was timed",
    )
    outcome = Outcome(
        status=status,
        error=None if right else (error or f"{provider} could not do this: {status}"),
        # An incorrect output was also compared. The other failures ended before the comparison.
        max_abs_err=1e-7 if right else 3.0 if status == "incorrect" else None,
        max_rel_err=1e-6 if right else 1.0 if status == "incorrect" else None,
        timing=None if median is None else timing(median).replace(cache=cache),
        state=None if median is None else state,
    )
    parts = Parts(
        point=digest(point.to_dict()),
        source=source,
        measurement=measurement,
        environment=relevant_environment(kernel, provider, gpu),
        settings=settings,
    )
    return Measurement(
        key=parts.key,
        point=point,
        workload=workload or usual_workload(kernel),
        outcome=outcome,
        rate=None if median is None else rate(median, work_of(point), ceilings(gpu)),
        parts=parts,
        origin=Origin(
            gpu=gpu,
            device="cuda:0" if on_gpu else "cpu",
            run=run or run_id(kernel, commit, dirty, measurement, settings),
            command=f"python -m pipeline.sweep kernel={kernel}",
            commit=commit,
            dirty=dirty,
            measured_at=measured_at,
        ),
    )


def fresh(row: Measurement, identity: Identity) -> Measurement:
    """Return the row with the key that its point has today, which makes it a fresh row."""
    parts = identity.parts(row.point)
    return row.replace(parts=parts, key=parts.key)


def run_id(*shared: object) -> str:
    """Return a run's id. Rows that differ in what the rows of a run share have different ids."""
    return RUN[:-6] + digest(shared)[:6]


def moved(row: Measurement, point: Point) -> Measurement:
    """Return the same measurement for another point, with that point's key."""
    parts = row.parts.replace(point=digest(point.to_dict()))
    return row.replace(point=point, parts=parts, key=parts.key)


def relevant_environment(kernel: str, provider: str, gpu: str) -> str:
    """Return the digest of the environment fields that the provider's key includes. For a provider that
    does not exist, these are all fields."""
    entry = entry_of(kernel)
    try:
        assert entry is not None
        return digest(environment(gpu).keyed_for(entry.loaded.kernel.provider(provider)))
    except (AssertionError, KeyError):
        return environment(gpu).digest


def usual_workload(kernel: str) -> str:
    """Return the first workload that the standard preset measures."""
    entry = entry_of(kernel)
    return "sizes" if entry is None else entry.groups("standard")[0].workloads[0]


def grid(
    *,
    kernels: Sequence[str] = ("softmax",),
    gpus: Sequence[str] = (H200,),
    providers: Sequence[str] = ("torch", "triton_online"),
    sizes: Sequence[int] = (256, 1024, 4096),
    dtypes: Sequence[str] = ("float32",),
    block_sizes: Sequence[int] = (512, 1024),
    num_warps: Sequence[int] = (4, 8),
    status: Status = "ok",
    commit: str = COMMIT,
    started: datetime = MEASURED_AT,
) -> list[Measurement]:
    """Return a sweep over all combinations of the providers' tuning parameters, measured one second apart."""
    rows: list[Measurement] = []
    for kernel, gpu, provider, dtype in itertools.product(kernels, gpus, providers, dtypes):
        declared = declared_parameters(kernel, provider)
        blocks = block_sizes if "block_size" in declared else (None,)
        warps = num_warps if "num_warps" in declared else (None,)
        for block, warp, size in itertools.product(blocks, warps, sizes):
            rows.append(
                measurement(
                    kernel,
                    provider,
                    size,
                    dtype,
                    block_size=block,
                    num_warps=warp,
                    gpu=gpu,
                    status=status,
                    commit=commit,
                    measured_at=started + timedelta(seconds=len(rows)),
                )
            )
    return rows


def flat(row: Measurement) -> dict[str, Any]:
    """Return a row as one flat dict: fields of the point and the outcome, dimensions, parameters."""
    line = row.to_dict()
    point, outcome = line["point"], line["outcome"]
    timing, state, rate_ = (part or {} for part in (outcome["timing"], outcome["state"], line["rate"]))
    return {
        **{"key": line["key"], "workload": line["workload"]},
        **{name: point[name] for name in ("kernel", "provider")},
        **point["problem"],
        **point["parameters"],
        **{"status": outcome["status"], "error": outcome["error"], "parts": line["parts"]},
        **timing,
        **state,
        **rate_,
        **line["origin"],
    }


def build(kernel: str) -> BuildReport:
    """Return a build report for a kernel without an extension."""
    return BuildReport(
        kernel=kernel, torch="2.11.0", nvcc=None, cxx=None, architectures=(), remarks=(), functions=()
    )


def write_results(folder: Path, measurements: Iterable[Measurement]) -> Path:
    """Replace the ledgers of these measurements' kernels and GPUs below the folder, and write the files
    that belong to them. Return the folder."""

    def ledger_of(row: Measurement) -> tuple[str, str]:
        return row.point.kernel, row.origin.gpu

    rows = sorted(measurements, key=lambda row: (ledger_of(row), order(row.point)))
    for (kernel, gpu), group in itertools.groupby(rows, key=ledger_of):
        path = results.ledger_path(folder, kernel, gpu)
        of_ledger = list(group)
        write_provenance(path, of_ledger)
        write_atomically(path, b"".join(map(encode, of_ledger)))
        texts = {
            results.environment_path(folder, gpu): environment(gpu).to_json(indent=2).decode(),
            results.ceilings_path(folder, gpu): ceilings(gpu).to_json(indent=2).decode(),
            results.config_path(folder, kernel, gpu): f"kernel: {kernel}\ndevice: auto\n",
            results.build_path(folder, kernel, gpu): build(kernel).to_json().decode(),
        }
        for path, text in texts.items():
            write_atomically(path, text.encode() + b"\n")
    return folder


def write_provenance(path: Path, rows: Iterable[Measurement | Final]) -> None:
    """Write the provenance lines of the runs that these rows name."""
    provenance.cover(path, ((row.origin, row.parts, row.point.kernel) for row in rows))


def final(
    row: Measurement,
    us: float,
    against: tuple[Measurement, float, str] | None = None,
    run: str = "20260901T120000Z-abcdef",
) -> Final:
    """Return a final of a measurement's point that took ``us``. ``against`` is our fastest measurement,
    its time and the verdict."""
    assert row.rate is not None and row.outcome.timing is not None
    us = rounded(us, TIME_DIGITS)
    work = Work(row.rate.bytes, {str(row.point.problem["dtype"]): row.rate.flops})
    provider = loading.load(row.point.kernel).kernel.provider(row.point.provider)
    beside = None
    if against is not None:
        other, other_us, verdict = against
        ratio = us / other_us
        beside = Against(
            point=other.point, ratio=ratio, low=ratio * 0.99, high=ratio * 1.01, verdict=cast(Any, verdict)
        )
    return Final(
        key=row.key,
        point=row.point,
        workload=row.workload,
        by=written_by(provider),
        rounds_us=(us, us),
        median_us=us,
        swept_us=row.outcome.timing.median_us,
        headline="gbps",
        rate=rate(us, work, ceilings(row.origin.gpu)),
        against=beside,
        power="burst",
        parts=row.parts,
        origin=row.origin.replace(run=run),
    )


def write_finals(folder: Path, rows: Sequence[Final]) -> None:
    """Add finals of one kernel on one GPU to a results folder."""
    finals.append(finals.path(folder, rows[0].point.kernel, rows[0].origin.gpu), rows)


def write_held_out(folder: Path, row: Measurement, ratio: float) -> Path:
    """Add a drawn problem at which torch takes ``ratio`` times as long as a row's configuration, and return
    the record's path."""
    kernel, gpu, run = row.point.kernel, row.origin.gpu, row.origin.run
    samples = held_out.path(folder, kernel, gpu, 20261201)
    turns.append(
        samples, Turn(side="tree", key=row.key, point=row.point, round=0, run=run, outcome=row.outcome)
    )
    other = Other(provider="torch", us=10.0 * ratio, ratio=ratio, low=ratio, high=ratio, verdict="slower")
    provider = row.point.provider
    drawn = HeldOutProblem(
        **{"problem": row.point.problem, "called": provider, "provider": provider, "how": "guessed"},
        **{"us": 10.0, "rounds": 3, "others": (other,)},
    )
    record = HeldOut(
        **{"kernel": kernel, "gpu": gpu, "baseline": "torch", "draw": 20261201, "run": run},
        **{"command": "heldout", "commit": None, "at": MEASURED_AT, "by": 0.03, "problems": (drawn,)},
    )
    path = samples.with_suffix(".json")
    write_atomically(path, record.to_json(indent=2) + b"\n")
    return path


def write_record(
    output: Path, rows: Sequence[Measurement], run: str, *, killed: bool = False, before: Parts | None = None
) -> Path:
    """Write the record that an ad-hoc sweep leaves in the folder after it measured these rows in this run;
    with ``killed``, the record of a sweep that was killed. Return the record's path."""
    gpu = rows[0].origin.gpu
    heading = Heading(
        run=run, kernel=rows[0].point.kernel, environment=environment(gpu), ceilings=ceilings(gpu)
    )
    with Recorder(output, heading) as recorder:
        for row in rows:
            origin = row.origin.replace(run=run)
            recorder.append(row.replace(origin=origin), before)
        if not killed:
            recorder.finish(lambda row: row.with_noise_floor(0.01))
    return recorder.path
