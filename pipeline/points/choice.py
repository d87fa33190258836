"""Which points to look into: of what a ledger holds, the few that say why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernels.point import Point

from pipeline.store.record import Measurement

DEFAULT = {"block_size": 1024, "num_warps": 4, "num_stages": 2}
"""The launch that one would write without measuring; of a grid that lacks it, the nearest values."""


@dataclass(frozen=True)
class Chosen:
    """A point, and why it was chosen: ``best``, ``default``, ``baseline``, or ``provider`` for a provider's
    best."""

    point: Point
    role: str


def few(sizes: Iterable[int]) -> list[int]:
    """The smallest, the middle and the largest."""
    ordered = sorted(set(sizes))
    return sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})


def grids_of_first(
    grids: Sequence[Mapping[str, Sequence[Any]]], sizes: Sequence[int], dtypes: Sequence[str]
) -> list[dict[str, Sequence[Any]]]:
    """What of a kernel's grids is launched at these sizes of the first one, in these dtypes: the first grid,
    and those that add launches for the same rows."""
    first = grids[0]
    wanted = {"size": sizes, "dtype": dtypes}
    added = [
        {**axes, **{name: [one for one in wanted[name] if one in axes[name]] for name in wanted}}
        for axes in grids[1:]
        if axes["rows"] == first["rows"]
    ]
    return [{**first, **wanted}, *(axes for axes in added if axes["size"] and axes["dtype"])]


def near_default(points: Sequence[Point]) -> Point:
    """The point whose launch is nearest to ``DEFAULT``, in doublings of each axis."""

    def distance(point: Point) -> float:
        return sum(
            abs(value.bit_length() - DEFAULT[axis].bit_length()) for axis, value in point.axes().items()
        )

    return min(points, key=distance)


def each_provider(points: Sequence[Point], timed: Mapping[Point, Measurement]) -> list[Chosen]:
    """Each provider's best configuration at each shape and dtype of the points; where nothing was timed, its
    default one."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.provider, point.extent, point.dtype), []).append(point)
    return [Chosen(_best(group, timed), "provider") for group in groups.values()]


def best_default_baseline(
    points: Sequence[Point],
    timed: Mapping[Point, Measurement],
    baseline: str,
    is_own: Callable[[str], bool],
) -> list[Chosen]:
    """At each shape and dtype of the points: the fastest own configuration, the same provider's default one,
    and the baseline. Without times the best is not known, and the first own provider's default stands alone.
    """
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.extent, point.dtype), []).append(point)
    chosen: list[Chosen] = []
    for group in groups.values():
        own = [point for point in group if is_own(point.provider)]
        known = [point for point in own if point in timed]
        if known:
            best = _best(known, timed)
            own = [point for point in own if point.provider == best.provider]
            chosen.append(Chosen(best, "best"))
        elif own:
            own = [point for point in own if point.provider == own[0].provider]
        if own:
            chosen.append(Chosen(near_default(own), "default"))
        chosen += [Chosen(point, "baseline") for point in group if point.provider == baseline]
    # The default may be the best; it is looked into once.
    first: dict[Point, Chosen] = {}
    for one in chosen:
        known_role = first.get(one.point)
        first[one.point] = one if known_role is None else replace(one, role=f"{known_role.role}, {one.role}")
    return list(first.values())


def _best(points: Sequence[Point], timed: Mapping[Point, Measurement]) -> Point:
    """The fastest of the points, one not to be trusted only where there is no other; without times the
    default."""
    known = [point for point in points if point in timed]
    if not known:
        return near_default(points)

    def rank(point: Point) -> tuple[bool, float]:
        outcome = timed[point].outcome
        assert outcome.timing is not None, "a timed point has a timing"
        return bool(outcome.state and not outcome.state.valid), outcome.timing.median_us

    return min(known, key=rank)
