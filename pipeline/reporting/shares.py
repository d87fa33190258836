"""Shares of a ceiling, of every time on all pages by the one ceiling that its machine has for its arithmetic.

A row keeps its share of the ceiling that was known when it was measured. Ceilings are measured again, and two
rows side by side may have shares of two ceilings. So a page computes every share when it is drawn: from the
time, and from the newest ceilings of the machine, which the page names. Sustained times have the ceiling of a
burst, too, so that what a GPU's power limit costs can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from kernel_pipeline.contract import Work
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Rates
from kernel_pipeline.records.fields import rounded
from kernel_pipeline.records.measurement import Measurement
from pipeline.points import problems
from pipeline.reporting.headlines import entry_of
from pipeline.store.finals import Final

DIGITS = 5
"""Significant digits of a share, as many as a row has."""

Row = TypeVar("Row", Measurement, Final)


def work_of(kernel: str, problem: Values) -> Work | None:
    """The work of a problem; None for a kernel that is not there, and for a problem of an earlier
    declaration."""
    entry = entry_of(kernel)
    if entry is None:
        return None
    declared = entry.loaded.kernel
    try:
        return declared.work(problems.make(declared.problem, problem))
    except UserError:
        return None


def compute_ceiling(kernel: str, problem: Values, ceilings: Rates | None) -> float | None:
    """The TFLOP/s of a matrix product by the arithmetic of a problem's work, where they were measured; of
    several arithmetics that of their mix. None for work without operations, and for a kernel that is not
    there, which can't say what its work is."""
    found = _peak(kernel, problem, ceilings)
    return found if math.isfinite(found) else None


def _peak(kernel: str, problem: Values, ceilings: Rates | None) -> float:
    """The compute ceiling in TFLOP/s, infinite for work without operations, NaN where it is not known."""
    work = work_of(kernel, problem)
    if work is None or ceilings is None or not work.operations.keys() <= ceilings.matmul_tflops.keys():
        return math.nan
    slowness = sum(count / ceilings.matmul_tflops[name] for name, count in work.operations.items())
    return work.flops / slowness if work.flops else math.inf


def with_shares(rows: Iterable[Row], ceilings: Mapping[str, Rates]) -> list[Row]:
    """Measurements or finals with the shares that their times have of these ceilings, by machine. Where the
    arithmetic's is not known, a row that was bound by memory still has its share of a copy's rate."""
    peaks: dict[tuple[str, Values, str], float] = {}
    found: list[Row] = []
    for row in rows:
        rate, gpu = row.rate, row.origin.gpu
        if rate is None:
            found.append(row)
            continue
        place = row.point.kernel, row.point.problem, gpu
        if place not in peaks:
            peaks[place] = _peak(*place[:2], ceilings.get(gpu))
        copy = ceilings[gpu].copy_gbps if gpu in ceilings else math.nan
        memory, compute = rate.gbps / copy, rate.tflops / peaks[place]
        if math.isnan(compute) and rate.bound == "memory":
            compute = 0.0
        share: dict[str, Any] = {"bound": None, "ceiling_fraction": None}
        if not math.isnan(memory + compute):
            bound = "memory" if memory >= compute else "compute"
            share = {"bound": bound, "ceiling_fraction": rounded(max(memory, compute), DIGITS)}
        found.append(row.replace(rate=rate.replace(**share)))
    return found
