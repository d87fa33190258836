"""Measurements on lines, as a plot against a workload's x axis draws them, and how a line is named.

A line runs along one dimension. All other dimensions stay the same on it, or are equal to x, as m, n and k of
square matrices are. Workloads whose problems lie on the same line share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_pipeline.contract import shown
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order
from pipeline.points import notation
from pipeline.reporting import headlines
from pipeline.reporting.headlines import NO_REASON

HOT = "hot"
"""What a timing with its inputs in the cache says of the cache."""


@dataclass(frozen=True)
class ProblemLine:
    """Problems along one dimension, ``x``, with the ``fixed`` values of others; the rest are equal to x."""

    x: str | None
    fixed: Values

    def step(self, problem: Values) -> int:
        """Where on the line a problem lies."""
        return int(problem[self.x]) if self.x else 0


@dataclass(frozen=True)
class PlacedMeasurement:
    """A measurement with the line that it is shown on, and whether its inputs were in the cache."""

    row: Measurement
    line: ProblemLine
    cache: str

    @property
    def point(self) -> Point:
        """What was measured."""
        return self.row.point

    @property
    def step(self) -> int:
        """The metrics' step."""
        return self.line.step(self.point.problem)

    @property
    def at_ms(self) -> int:
        """When it was measured."""
        return round(self.row.origin.measured_at.timestamp() * 1000)

    @property
    def trusted(self) -> bool:
        """Whether its timing may be believed."""
        return not self.doubt

    @property
    def doubt(self) -> str:
        """Why it may not be; empty where it may."""
        state = self.row.outcome.state
        return "" if state is None or state.valid else state.invalid_reason or NO_REASON

    @property
    def is_bound(self) -> bool:
        """Whether its time is an upper bound: the device was held back."""
        state = self.row.outcome.state
        return state is not None and not state.valid and state.throttle is not None


def place(rows: Sequence[Measurement]) -> list[PlacedMeasurement]:
    """The measurements of one ledger on their lines.

    Of a point that was timed by several settings with the cache in the same state, the newest counts: two
    values at one step are no line.
    """
    caches = {row.parts.settings: row.outcome.timing.cache for row in rows if row.outcome.timing}
    newest: dict[tuple[Point, str], Measurement] = {}
    for row in rows:
        slot = row.point, caches.get(row.parts.settings, "cold")
        if slot not in newest or newest[slot].origin.measured_at <= row.origin.measured_at:
            newest[slot] = row
    of_workload: dict[str, list[Point]] = {}
    for row in newest.values():
        of_workload.setdefault(row.workload, []).append(row.point)
    axes = {workload: axis(workload, points) for workload, points in of_workload.items()}
    placed = [
        PlacedMeasurement(row, _line(row.point, *axes[row.workload]), cache)
        for (_, cache), row in newest.items()
    ]
    return sorted(placed, key=lambda one: (order(one.point), one.cache))


def axis(workload: str, points: Sequence[Point]) -> tuple[str | None, frozenset[str]]:
    """The dimension on the x axis of a kernel's workload, and the dimensions that go along with it: those
    that ``size`` stands for too, and those that are the same unless they are named.

    Of a kernel that this repository does not have, the number that takes most values among the points, and
    those that are the same in all of them. None where problems have no number.
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


def _line(point: Point, x: str | None, along: frozenset[str]) -> ProblemLine:
    problem = point.problem
    if x is not None and any(problem[name] != problem[x] for name in along):
        along = frozenset()  # a problem with some of them pinned
    moving = {x, *along}
    return ProblemLine(x, Values({name: value for name, value in problem.items() if name not in moving}))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def configuration(one: PlacedMeasurement) -> str:
    """A child run in words: ``triton_online bfloat16 1024x8w``, or ``... 1024x8w rows=37``."""
    point = one.point
    where = elsewhere(point.kernel, one.line)
    hot = HOT if one.cache == HOT else ""
    return " ".join(
        filter(None, [point.provider, notation.words(point), notation.configuration(point), where, hot])
    )


def elsewhere(kernel: str, line: ProblemLine) -> str:
    """The numbers that tell a line from the kernel's own, which runs along its size with all else at its
    default: ``rows=37``."""
    numbers = {name: value for name, value in line.fixed.items() if _is_number(value)}
    entry = headlines.entry_of(kernel)
    if entry is not None and line.x == entry.loaded.kernel.size[0]:
        for name, variable in entry.loaded.kernel.dimensions().items():
            default = line.fixed.get(variable.same_as) if variable.same_as else variable.default
            if name not in entry.loaded.kernel.size and numbers.get(name) == default:
                numbers.pop(name, None)
    return " ".join(f"{name}={shown(value)}" for name, value in numbers.items())
