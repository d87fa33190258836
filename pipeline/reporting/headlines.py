"""Rules for reading a kernel's rows.

They choose the rate that is compared, the dimension on the x axis and the row that is shown for a point, and
compute shares of a ceiling.

A row records its share of the ceiling that was known when it was measured. Ceilings are measured again, so
two rows may have shares of different ceilings. Pages therefore compute every share anew, from the time and
the machine's newest ceilings. Sustained times are compared with the ceiling of a burst too: the share shows
the cost of the GPU's power limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from kernel_pipeline import problems
from kernel_pipeline.contract import Work
from kernel_pipeline.errors import UserError
from kernel_pipeline.records import ceilings
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point

from ..points import catalog
from ..points.catalog import Entry
from ..store.finals import Final

NO_REASON = "no reason was recorded"

Row = TypeVar("Row", Measurement, Final)


@cache
def entry_of(kernel: str) -> Entry | None:
    """Return the kernel with its YAML; None for a kernel that this repository does not have."""
    try:
        return catalog.find(kernel)
    except UserError:
        return None


def x_name(kernel: str, workload: str, point: Point | None = None) -> str:
    """Return the dimension on a workload's x axis; for an unknown kernel the problem's first number."""
    entry = entry_of(kernel)
    if entry is not None:
        return entry.x_dimension(workload)
    numbers = [] if point is None else [name for name, value in point.problem.items() if type(value) is int]
    return numbers[0] if numbers else "size"


def headline(kernel: str, workload: str, problem: Values | None = None) -> str:
    """Return the rate that is compared: ``gbps`` or ``tflops``.

    Two machines' rows of one problem may belong to different workloads. A problem therefore has the rate of
    the workload that lists it in the YAML, or of its row's workload if no workload lists it.
    """
    entry = entry_of(kernel)
    if entry is None:
        return "gbps"
    return _listed_headlines(kernel).get(problem) or entry.headline(workload)


def headline_of(row: Measurement | Final) -> str:
    """Return the rate that is compared at a row's problem."""
    return headline(row.point.kernel, row.workload, row.point.problem)


@cache
def _listed_headlines(kernel: str) -> Mapping[Values | None, str]:
    """Return the rate of each problem in a kernel's YAML; the first workload with its own rate decides."""
    entry = entry_of(kernel)
    assert entry is not None, "an unknown kernel has no YAML"
    found: dict[Values | None, str] = {}
    for name, workload in sorted(entry.config.workloads.items(), key=lambda one: one[1].headline is None):
        for problem in catalog.problems_of(entry, workload, {}):
            found.setdefault(problems.identity_of(problem), entry.headline(name))
    return found


def is_bound(row: Mapping[Any, Any]) -> bool:
    """Return whether the time in a frame's row is an upper bound: the device was throttled."""
    return row["valid"] is False and isinstance(row["throttle"], str)


def is_distrusted(row: Mapping[Any, Any]) -> bool:
    """Return whether the time in a frame's row is distrusted and not an upper bound."""
    return row["valid"] is False and not is_bound(row)


def doubt(row: Mapping[Any, Any]) -> str:
    """Return why the time in a frame's row is distrusted; empty for a trusted time."""
    return (row["invalid_reason"] or NO_REASON) if row["valid"] is False else ""


def doubt_of(row: Measurement) -> str:
    """Return why a measurement's time is distrusted; empty for a trusted time."""
    state = row.outcome.state
    return "" if state is None or state.valid else state.invalid_reason or NO_REASON


def is_upper_bound(row: Measurement) -> bool:
    """Return whether a measurement's time is an upper bound: the device was throttled."""
    state = row.outcome.state
    return state is not None and not state.valid and state.throttle is not None


@cache
def work_of(kernel: str, problem: Values) -> Work | None:
    """Return the work of a problem; None for an unknown kernel or a problem that it no longer declares."""
    entry = entry_of(kernel)
    if entry is None:
        return None
    declared = entry.loaded.kernel
    try:
        return declared.work(problems.make(declared.problem, problem))
    except UserError:
        return None


def compute_ceiling(kernel: str, problem: Values, known: Ceilings | None) -> float | None:
    """Return the TFLOP/s ceiling of a problem's work, for its arithmetic or its mix of several.

    Returns None for work without operations, for an unknown kernel, and if a rate was not measured.
    """
    work = work_of(kernel, problem)
    if work is None or known is None or not work.flops:
        return None
    if not work.operations.keys() <= known.matmul_tflops.keys():
        return None
    return work.flops / sum(count / known.matmul_tflops[name] for name, count in work.operations.items())


def with_shares(rows: Iterable[Row], known: Mapping[str, Ceilings]) -> list[Row]:
    """Return measurements or finals with shares of the ceilings in ``known``, which are by machine."""
    found = []
    for row in rows:
        timing = row if isinstance(row, Final) else row.outcome.timing
        if row.rate is None or timing is None:
            found.append(row)
            continue
        work = work_of(row.point.kernel, row.point.problem)
        if work is None and row.rate.bound == "memory":  # operations unknown, but not the bound
            work = Work(bytes=row.rate.bytes, operations={})
        now = None if work is None else ceilings.rate(timing.median_us, work, known.get(row.origin.gpu))
        share = {"bound": now and now.bound, "ceiling_fraction": now and now.ceiling_fraction}
        found.append(row.replace(rate=row.rate.replace(**share)))
    return found
