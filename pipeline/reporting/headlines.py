"""How a kernel's rows are read: the rate that is compared, the dimension on the x axis, the row of a point
that counts, and shares of a ceiling.

A row keeps its share of the ceiling that was known when it was measured. Ceilings are measured again, and two
rows side by side may have shares of two ceilings. So pages compute every share anew, from the time and from
the newest ceilings of the machine. Sustained times have the ceiling of a burst, too: the share shows what a
GPU's power limit costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from kernel_pipeline.contract import Work
from kernel_pipeline.errors import UserError
from kernel_pipeline.records import ceilings
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from pipeline.points import catalog, problems
from pipeline.points.catalog import Entry
from pipeline.store.finals import Final

NO_REASON = "no reason was recorded"

USUAL_TIMERS = ("graph", "event", "perf_counter")
"""The timers that are used unless others are asked for: on a GPU a graph, or events where a graph can't be
captured; on a CPU the host's clock."""

Row = TypeVar("Row", Measurement, Final)


@cache
def entry_of(kernel: str) -> Entry | None:
    """The kernel with its YAML; None for a kernel that this repository does not have."""
    try:
        return catalog.find(kernel)
    except UserError:
        return None


def x_name(kernel: str, workload: str, point: Point | None = None) -> str:
    """The dimension on a workload's x axis; for an unknown kernel the first number of the point's problem."""
    entry = entry_of(kernel)
    if entry is not None:
        return entry.x_dimension(workload)
    numbers = [] if point is None else [name for name, value in point.problem.items() if type(value) is int]
    return numbers[0] if numbers else "size"


def headline(kernel: str, workload: str, problem: Values | None = None) -> str:
    """The rate that is compared: ``gbps`` or ``tflops``.

    Two machines' rows of one problem may belong to two workloads. So a problem has the rate of the workload
    that lists it, and that of its row's workload only where none does.
    """
    entry = entry_of(kernel)
    if entry is None:
        return "gbps"
    return _listed_headlines(kernel).get(problem) or entry.headline(workload)


def headline_of(row: Measurement | Final) -> str:
    """The rate that is compared at a row's problem."""
    return headline(row.point.kernel, row.workload, row.point.problem)


@cache
def _listed_headlines(kernel: str) -> Mapping[Values | None, str]:
    """The rate of each problem in a kernel's YAML; of several workloads the first with a rate decides."""
    entry = entry_of(kernel)
    assert entry is not None, "an unknown kernel has no YAML"
    found: dict[Values | None, str] = {}
    for name, workload in sorted(entry.config.workloads.items(), key=lambda one: one[1].headline is None):
        for problem in problems.of_workload(entry, workload, {}):
            found.setdefault(problems.identity_of(problem), entry.headline(name))
    return found


def newest(measurements: Iterable[Measurement], slot: Callable[[Measurement], Hashable]) -> list[Measurement]:
    """The newest measurement of each slot: the one that counts."""
    found: dict[Hashable, Measurement] = {}
    for row in measurements:
        known = found.setdefault(slot(row), row)
        if known.origin.measured_at <= row.origin.measured_at:
            found[slot(row)] = row
    return list(found.values())


def comparable(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The newest row of each point of a machine, of the rows that can be compared: timed by a usual timer
    over cold inputs."""
    usual = (
        row
        for row in measurements
        if (timing := row.outcome.timing) is None or (timing.cache == "cold" and timing.timer in USUAL_TIMERS)
    )
    return newest(usual, lambda row: (row.origin.gpu, row.point))


def is_bound(row: Mapping[Any, Any]) -> bool:
    """Whether the time in a row of a frame is an upper bound: the device was throttled."""
    return row["valid"] is False and isinstance(row["throttle"], str)


def is_distrusted(row: Mapping[Any, Any]) -> bool:
    """Whether the time in a row of a frame is not to be trusted, and is no upper bound either."""
    return row["valid"] is False and not is_bound(row)


def doubt(row: Mapping[Any, Any]) -> str:
    """Why the time in a row of a frame is not to be trusted; empty for a trusted one."""
    return (row["invalid_reason"] or NO_REASON) if row["valid"] is False else ""


def doubt_of(row: Measurement) -> str:
    """Why a measurement's time is not to be trusted; empty for a trusted one."""
    state = row.outcome.state
    return "" if state is None or state.valid else state.invalid_reason or NO_REASON


def is_upper_bound(row: Measurement) -> bool:
    """Whether a measurement's time is an upper bound: the device was throttled."""
    state = row.outcome.state
    return state is not None and not state.valid and state.throttle is not None


@cache
def work_of(kernel: str, problem: Values) -> Work | None:
    """The work of a problem; None for an unknown kernel, and for a problem that it no longer declares."""
    entry = entry_of(kernel)
    if entry is None:
        return None
    declared = entry.loaded.kernel
    try:
        return declared.work(problems.make(declared.problem, problem))
    except UserError:
        return None


def compute_ceiling(kernel: str, problem: Values, known: Ceilings | None) -> float | None:
    """The TFLOP/s of a matrix product by the arithmetic of a problem's work, or by its mix of several. None
    for work without operations, for an unknown kernel and where a rate was not measured."""
    work = work_of(kernel, problem)
    if work is None or known is None or not work.flops:
        return None
    if not work.operations.keys() <= known.matmul_tflops.keys():
        return None
    return work.flops / sum(count / known.matmul_tflops[name] for name, count in work.operations.items())


def with_shares(rows: Iterable[Row], known: Mapping[str, Ceilings]) -> list[Row]:
    """Measurements or finals with the shares that their times have of these ceilings, by machine."""
    found = []
    for row in rows:
        timing = row if isinstance(row, Final) else row.outcome.timing
        if row.rate is None or timing is None:
            found.append(row)
            continue
        work = work_of(row.point.kernel, row.point.problem)
        if work is None and row.rate.bound == "memory":  # its operations are unknown, and did not bound it
            work = Work(bytes=row.rate.bytes, operations={})
        now = None if work is None else ceilings.rate(timing.median_us, work, known.get(row.origin.gpu))
        share = {"bound": now and now.bound, "ceiling_fraction": now and now.ceiling_fraction}
        found.append(row.replace(rate=row.rate.replace(**share)))
    return found
