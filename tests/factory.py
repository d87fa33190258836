"""Synthetic results that are valid and the same on every run: what a sweep could have left behind.

``grid`` makes measurements, ``write_results`` puts them where the stages look for them, with an
environment, ceilings, a resolved configuration and a build report for each GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernels.point import Point
from pipeline.measure import ledger, results
from pipeline.measure.ceiling import Ceilings, rate
from pipeline.measure.device import Environment
from pipeline.measure.record import Measurement, Origin, Outcome, State, Status, Timing, digest

H200 = "nvidia-h200"
H100 = "nvidia-h100-80gb-hbm3"
CPU = "cpu-amd-epyc"
COPY_GBPS = {H200: 4270.0, H100: 3000.0, CPU: 40.0}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MEASURED_AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

AXES = {
    "torch": (),
    "torch_compile": (),
    "cpp": (),
    "triton_row": ("num_warps",),
    "triton_online": ("block_size", "num_warps"),
    "cuda": ("block_size", "num_warps"),
}
"""The axes each provider obeys; an unknown provider obeys none."""

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
"""The share of the copy rate that each provider reaches at large sizes."""

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
ROWS = 4096


def environment(gpu: str = H200) -> Environment:
    """A plausible environment; GPUs whose slug starts with ``cpu-`` are processors."""
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
    """Ceilings that fit the environment of the same GPU."""
    copy = COPY_GBPS.get(gpu, 2000.0)
    flops = {"float32": copy / 80, "bfloat16": copy / 6, "float16": copy / 6}
    return Ceilings(gpu=gpu, environment=environment(gpu).digest, copy_gbps=copy, matmul_tflops=flops)


def timing(median_us: float, samples: int = 20) -> Timing:
    """A timing whose samples lie within two per cent of the median."""
    spread = [median_us * (1 + 0.02 * (2 * i / (samples - 1) - 1)) for i in range(samples)]
    return Timing(
        timer="graph",
        cache="cold",
        median_us=median_us,
        p20_us=spread[samples // 5],
        p80_us=spread[-1 - samples // 5],
        min_us=spread[0],
        rel_ci=0.004,
        overhead_us=0.0,
        n_samples=samples,
        samples_us=tuple(spread),
    )


def time_us(point: Point, gpu: str) -> float:
    """A launch's cost plus the bytes at the provider's share of the copy rate; wide blocks are best."""
    bytes_ = 2 * (point.rows or ROWS) * point.size * ITEMSIZE[point.dtype]
    share = EFFICIENCY.get(point.provider, 0.7)
    share *= 1 - 0.04 * abs((point.block_size or 1024).bit_length() - 11)
    share *= 1 - 0.03 * abs((point.num_warps or 8).bit_length() - 4)
    return 2.5 + bytes_ / (share * COPY_GBPS.get(gpu, 2000.0)) / 1e3


def measurement(
    kernel: str = "softmax",
    provider: str = "torch",
    size: int = 1024,
    dtype: str = "float32",
    *,
    block_size: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    rows: int | None = None,
    gpu: str = H200,
    status: Status = "ok",
    error: str | None = None,
    median_us: float | None = None,
    commit: str = COMMIT,
    dirty: bool = False,
    source: str = "5" * 16,
    measured_at: datetime = MEASURED_AT,
    valid: bool = True,
) -> Measurement:
    """One measurement; what is not given is plausible and follows from what is."""
    point = Point(kernel, provider, size, dtype, block_size, num_warps, num_stages, rows)
    right = status in ("ok", "verified")
    median = (median_us or time_us(point, gpu)) if status == "ok" else None
    on_gpu = not gpu.startswith("cpu-")
    state = State(
        sm_clock_mhz=1980 if on_gpu else None,
        mem_clock_mhz=3201 if on_gpu else None,
        temperature_c=41 if on_gpu else None,
        power_w=322.5 if on_gpu else None,
        valid=valid,
        invalid_reason=None if valid else "the clock moved by 8 % while it was timed",
    )
    outcome = Outcome(
        status=status,
        error=None if right else (error or f"{provider} could not do this: {status}"),
        shape=(rows or ROWS, size),
        # An incorrect output was compared too; all that failed earlier were not.
        max_abs_err=1e-7 if right else 3.0 if status == "incorrect" else None,
        max_rel_err=1e-6 if right else 1.0 if status == "incorrect" else None,
        timing=None if median is None else timing(median),
        state=None if median is None else state,
    )
    elements = (rows or ROWS) * size
    bytes_ = 2 * elements * ITEMSIZE[dtype]
    fingerprint = environment(gpu).digest
    return Measurement(
        key=digest([kernel, provider, size, dtype, block_size, num_warps, num_stages, rows, gpu, source]),
        point=point,
        outcome=outcome,
        rate=None if median is None else rate(median, bytes_, 5 * elements, dtype, ceilings(gpu)),
        origin=Origin(
            gpu=gpu,
            device="cpu" if gpu.startswith("cpu-") else "cuda:0",
            environment=fingerprint,
            source=source,
            commit=commit,
            dirty=dirty,
            measured_at=measured_at,
        ),
    )


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
    """A sweep over all combinations that the providers' axes allow, measured a second apart."""
    rows: list[Measurement] = []
    for kernel, gpu, provider, dtype in itertools.product(kernels, gpus, providers, dtypes):
        axes = AXES.get(provider, ())
        blocks = block_sizes if "block_size" in axes else (None,)
        warps = num_warps if "num_warps" in axes else (None,)
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


def write_results(folder: Path, measurements: Iterable[Measurement]) -> Path:
    """Replace the ledgers of these measurements' kernels and GPUs below the folder, and write what belongs
    to them. Returns the folder."""

    def ledger_of(row: Measurement) -> tuple[str, str]:
        return row.point.kernel, row.origin.gpu

    rows = sorted(measurements, key=lambda row: (ledger_of(row), ledger.order(row.point)))
    for (kernel, gpu), group in itertools.groupby(rows, key=ledger_of):
        ledger.write_rows(results.ledger_path(folder, kernel, gpu), group)
        texts = {
            results.environment_path(folder, gpu): environment(gpu).model_dump_json(indent=2),
            results.ceilings_path(folder, gpu): ceilings(gpu).model_dump_json(indent=2),
            results.config_path(folder, kernel, gpu): f"kernel: {kernel}\ndevice: auto\n",
            results.build_path(folder, kernel, gpu): f'{{"kernel": "{kernel}", "functions": []}}',
        }
        for path, text in texts.items():
            ledger.write_atomically(path, text.encode() + b"\n")
    return folder
