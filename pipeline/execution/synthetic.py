"""Machines and outcomes that were never measured, but could have been: what a benchmark of the pipeline
itself fills ledgers with. The same point has the same outcome on every run."""

from __future__ import annotations

import random

from kernels.contract import Kernel, Work
from pipeline.machine.device import Device
from pipeline.points import problems
from pipeline.points.frozen import digest
from pipeline.points.point import Point
from pipeline.store.ceilings import Ceilings
from pipeline.store.environment import Environment
from pipeline.store.record import Outcome, State, Timing

COPY_GBPS = 3000.0
"""Of the first machine; each further one has a tenth more."""

SAMPLES = 14
"""The median of the rows of an H200's sweeps in this repository."""

FAILED = 0.01
"""The share of points that end without a time."""


def device(model: int, index: int = 0) -> Device:
    """A GPU of a model that does not exist."""
    return Device(kind="cuda", name=f"Simulated GPU {model}", index=index)


def environment(model: int) -> Environment:
    """What a machine with such a GPU would be."""
    made = device(model)
    return Environment(
        gpu=made.slug,
        name=made.name,
        kind="cuda",
        compute_capability=None,
        memory_mib=81920,
        driver="0.0",
        cuda="0.0",
        torch="0.0",
        triton="0.0",
        python="0.0",
        nvcc="0.0",
        cxx="none",
        cpu="simulated",
        cpu_threads=1,
        platform="simulated",
    )


def ceilings(model: int, arithmetics: frozenset[str]) -> Ceilings:
    """What such a GPU would do at best."""
    copy = COPY_GBPS * (1 + 0.1 * model)
    known = environment(model)
    return Ceilings(
        gpu=known.gpu,
        environment=known.of_device,
        copy_gbps=copy,
        matmul_tflops=dict.fromkeys(sorted(arithmetics), copy / 10),
    )


def work_of(kernel: Kernel, point: Point) -> Work:
    """The least work of the point's problem."""
    return kernel.work(problems.make(kernel.problem, point.problem))


def outcome(point: Point, work: Work, limits: Ceilings) -> Outcome:
    """How the point could have ended on a device of these limits: one of a hundred fails."""
    dice = random.Random(digest([point.model_dump(), limits.gpu]))
    if dice.random() < FAILED:
        return Outcome(status="runtime_error", error="this failure was made up by a benchmark")
    moving = work.bytes / limits.copy_gbps / 1e3
    computing = sum(n / limits.matmul_tflops[name] for name, n in work.operations.items()) / 1e6
    median = 2.5 + max(moving, computing) / dice.uniform(0.3, 0.98)
    samples = sorted(round(median * dice.uniform(0.99, 1.01), 3) for _ in range(SAMPLES))
    middle = (samples[SAMPLES // 2 - 1] + samples[SAMPLES // 2]) / 2
    return Outcome(
        status="ok",
        max_abs_err=1e-7,
        max_rel_err=1e-6,
        timing=Timing(
            timer="graph",
            cache="cold",
            median_us=middle,
            p20_us=samples[SAMPLES // 5],
            p80_us=samples[-1 - SAMPLES // 5],
            min_us=samples[0],
            rel_ci=0.004,
            n_samples=SAMPLES,
            samples_us=tuple(samples),
        ),
        state=State(sm_clock_mhz=1980, mem_clock_mhz=3201, temperature_c=41, power_w=322.5),
    )
