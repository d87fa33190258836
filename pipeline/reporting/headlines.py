"""What people read of a kernel's rows: the rate that is compared, the dimension on the x axis,
and which rows count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point
from pipeline.points import catalog, problems
from pipeline.points.catalog import Entry
from pipeline.store.finals import Final

NO_REASON = "no reason was recorded"

USUAL_TIMERS = ("graph", "event", "perf_counter")
"""How a device is timed unless somebody asks for another way: on a GPU a graph, or events where one can't be
captured, and on a CPU the host's clock."""


@cache
def entry_of(kernel: str) -> Entry | None:
    """The kernel with its YAML; None for one that is not in this repository any more, or never was."""
    try:
        return catalog.find(kernel)
    except UserError:
        return None


def x_name(kernel: str, workload: str, point: Point | None = None) -> str:
    """The dimension on a workload's x axis; of a kernel that is gone the first number of the point's
    problem."""
    entry = entry_of(kernel)
    if entry is not None:
        return entry.x_dimension(workload)
    numbers = [] if point is None else [name for name, value in point.problem.items() if type(value) is int]
    return numbers[0] if numbers else "size"


def headline(kernel: str, workload: str, problem: Values | None = None) -> str:
    """Which rate people compare: ``gbps`` or ``tflops``.

    Two machines' rows at one problem may be of two workloads. So the problem's rate, where one is given, is
    that of the workload that lists it; only of a problem that none lists it is its row's workload's."""
    entry = entry_of(kernel)
    if entry is None:
        return "gbps"
    return _listed_headlines(kernel).get(problem) or entry.headline(workload)


def headline_of(row: Measurement | Final) -> str:
    """Which rate people compare at a row's problem."""
    return headline(row.point.kernel, row.workload, row.point.problem)


@cache
def _listed_headlines(kernel: str) -> Mapping[Values | None, str]:
    """The rate of each problem that a kernel's YAML lists; of one that several workloads list, that of the
    first that names a rate of its own."""
    entry = entry_of(kernel)
    assert entry is not None, "a kernel that is gone has no YAML"
    found: dict[Values | None, str] = {}
    for name, workload in sorted(entry.config.workloads.items(), key=lambda one: one[1].headline is None):
        for problem in problems.of_workload(entry, workload, {}):
            found.setdefault(problems.identity_of(problem), entry.headline(name))
    return found


def comparable(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One row of each point of a machine, the newest, of those that can be compared: timed in the usual way,
    over inputs that are in no cache."""
    newest: dict[tuple[str, Point], Measurement] = {}
    for row in measurements:
        timing = row.outcome.timing
        if timing is not None and (timing.cache != "cold" or timing.timer not in USUAL_TIMERS):
            continue
        slot = (row.origin.gpu, row.point)
        if slot not in newest or newest[slot].origin.measured_at <= row.origin.measured_at:
            newest[slot] = row
    return list(newest.values())


def is_bound(row: Mapping[Any, Any]) -> bool:
    """Whether a time is an upper bound: the device was held back while it was taken."""
    return row["valid"] is False and isinstance(row["throttle"], str)


def is_distrusted(row: Mapping[Any, Any]) -> bool:
    """Whether a time says nothing: it is not to be trusted, and no upper bound either."""
    return row["valid"] is False and not is_bound(row)


def doubt(row: Mapping[Any, Any]) -> str:
    """Why a time is not to be trusted; empty for one that is."""
    return (row["invalid_reason"] or NO_REASON) if row["valid"] is False else ""
