"""The lines of measurements in a plot against a workload's x axis, and the names of lines.

A line runs along one dimension, x. On a line every other dimension is either fixed or equal to x, such as m,
n and k of square matrices. Workloads whose problems lie on the same line share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kernel_pipeline.declared import shown
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order

from ..points import notation
from ..store.rows_that_count import newest
from . import headlines
from .headlines import doubt_of, is_upper_bound

HOT = "hot"
"""The cache state of a timing whose inputs were in the cache."""


@dataclass(frozen=True)
class ProblemLine:
    """Problems along the dimension ``x`` with ``fixed`` values of others; the rest are equal to x."""

    x: str | None
    fixed: Values

    def step(self, problem: Values) -> int:
        """Return the problem's value of x; 0 without an x."""
        return int(cast("int", problem[self.x])) if self.x else 0


@dataclass(frozen=True)
class PlacedMeasurement:
    """A measurement with its line and the cache state of its timing."""

    row: Measurement
    line: ProblemLine
    cache: str

    @property
    def point(self) -> Point:
        """The point that was measured."""
        return self.row.point

    @property
    def step(self) -> int:
        """The step of the metrics in MLflow: the problem's value of x."""
        return self.line.step(self.point.problem)

    @property
    def at_ms(self) -> int:
        """When the point was measured, in milliseconds since the epoch."""
        return round(self.row.origin.measured_at.timestamp() * 1000)

    @property
    def trusted(self) -> bool:
        """Whether the time is trusted."""
        return not self.doubt

    @property
    def doubt(self) -> str:
        """Why the time is distrusted; empty for a trusted time."""
        return doubt_of(self.row)

    @property
    def is_bound(self) -> bool:
        """Whether the time is an upper bound: the device was throttled."""
        return is_upper_bound(self.row)


def place(rows: Sequence[Measurement]) -> list[PlacedMeasurement]:
    """Place the measurements of one ledger on their lines.

    Among a point's rows with the same cache state only the newest is used, so that a line has one value per
    step.
    """
    caches = {row.parts.settings: row.outcome.timing.cache for row in rows if row.outcome.timing}

    def cache_of(row: Measurement) -> str:
        return caches.get(row.parts.settings, "cold")

    counting = newest(rows, lambda row: (row.point, cache_of(row)))
    of_workload: dict[str, list[Point]] = {}
    for row in counting:
        of_workload.setdefault(row.workload, []).append(row.point)
    axes = {workload: axis(workload, points) for workload, points in of_workload.items()}
    placed = [
        PlacedMeasurement(row, line_of(row.point.problem, *axes[row.workload]), cache_of(row))
        for row in counting
    ]
    return sorted(placed, key=lambda one: (order(one.point), one.cache))


def axis(workload: str, points: Sequence[Point]) -> tuple[str | None, frozenset[str]]:
    """Return the dimension on a workload's x axis, and the dimensions that are equal to it.

    If x belongs to the kernel's ``size``, the others of ``size`` are equal to x. A dimension that defaults to
    one of these is equal to x, too. Dimensions that the workload lists are not equal.

    For an unknown kernel x is the number with the most values among the points, and the equal dimensions are
    those equal to it at every point. If problems have no numbers, x is None.
    """
    names = [name for name in points[0].problem if all(_is_number(p.problem.get(name)) for p in points)]
    entry = headlines.entry_of(points[0].kernel)
    if entry is not None and (x := entry.x_dimension(workload)) in names:
        known = entry.config.workloads.get(workload)
        own = known.lists if known else {}
        size = entry.loaded.kernel.size
        moved = {x, *(name for name in size if name not in own)} if x in size and x not in own else {x}
        for name, variable in entry.loaded.kernel.dimensions().items():
            if variable.same_as in moved and name not in own:
                moved.add(name)
        return x, frozenset(moved & set(names)) - {x}
    if not names:
        return None, frozenset()
    x = max(names, key=lambda name: len({point.problem[name] for point in points}))
    same = (name for name in names if all(p.problem[name] == p.problem[x] for p in points))
    return x, frozenset(same) - {x}


def line_of(problem: Values, x: str | None, along: frozenset[str]) -> ProblemLine:
    """Return the line of a problem on its workload's axis."""
    if x is not None and any(problem[name] != problem[x] for name in along):
        along = frozenset()  # some of these dimensions are pinned
    moving = {x, *along}
    return ProblemLine(x, Values({name: value for name, value in problem.items() if name not in moving}))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def configuration(one: PlacedMeasurement) -> str:
    """Return the name of a child run: ``triton_online bfloat16 1024x8w``, or ``... 1024x8w rows=37``."""
    point = one.point
    where = elsewhere(point.kernel, one.line)
    hot = HOT if one.cache == HOT else ""
    return " ".join(
        filter(None, [point.provider, notation.words(point), notation.configuration(point), where, hot])
    )


def elsewhere(kernel: str, line: ProblemLine) -> str:
    """Return the numbers by which a line differs from the kernel's usual line: ``rows=37``.

    The usual line runs along the kernel's size with all other dimensions at their defaults.
    """
    numbers = {
        name: value for name, value in line.fixed.items() if _is_number(value) or isinstance(value, tuple)
    }
    entry = headlines.entry_of(kernel)
    if entry is not None and line.x == entry.loaded.kernel.size[0]:
        for name, variable in entry.loaded.kernel.dimensions().items():
            default = line.fixed.get(variable.same_as) if variable.same_as else variable.default
            if name not in entry.loaded.kernel.size and numbers.get(name) == default:
                numbers.pop(name, None)
    return " ".join(f"{name}={shown(value)}" for name, value in numbers.items())
