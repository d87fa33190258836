"""Choose the few points of a preset for a closer look, such as a profile or hardware counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar, cast

from kernel_pipeline import problems
from kernel_pipeline.contract import Kernel
from kernel_pipeline.declared import Value, Variable
from kernel_pipeline.errors import UserError
from kernel_pipeline.problems import identity_of
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import Point, order

from .catalog import SIZE, Entry, problems_of
from .plan import Pins, Plan, Target, checked_pins, chosen_providers, configurations, unavailable

T = TypeVar("T")

NO_PINS: Pins = MappingProxyType({})

EVERY, LARGEST = slice(None), slice(-1, None)
"""Slices of a few problems, the smallest first."""


@dataclass(frozen=True)
class Chosen:
    """A point and the reason it was chosen: ``best``, ``default``, ``baseline``, or ``provider`` for the best
    of a provider."""

    point: Point
    role: str


def few(ordered: Sequence[T]) -> list[T]:
    """Return the smallest, the middle and the largest of ordered items, each once."""
    return list(dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]]))


def largest(wanted: Plan, pins: Pins = NO_PINS) -> frozenset[Values]:
    """Return each workload's largest problem that has the words (the dtype) of the workload's first problem;
    with pins one for each pinned value."""
    last: dict[tuple[object, ...], Point] = {}
    for point, workload in wanted.workloads.items():
        _, _, words, numbers, _ = order(point)
        of_pins = tuple(value for name, value in point.problem.items() if name in pins or SIZE in pins)
        other = last.setdefault((workload, of_pins), point)
        same_words = words == order(other)[2]
        if same_words and numbers > order(other)[3]:  # type: ignore[operator]  # both are numbers
            last[workload, of_pins] = point
    return frozenset(point.problem for point in last.values())


def few_problems(
    entry: Entry, preset: str, pins: Pins, providers: Sequence[str] | None = None, which: slice = EVERY
) -> list[Values]:
    """Return a few problems of the preset's first workload: ``which`` of the smallest, the middle and the
    largest by the bytes that they move. Only problems with the workload's first words (a dtype) are
    considered.

    Problems are chosen for each value of a pinned dimension. Raises UserError as ``plan`` does.
    """
    kernel = entry.loaded.kernel
    pins = checked_pins(entry, pins, providers)
    workload = entry.config.workloads[entry.groups(preset)[0].workloads[0]]
    pinned = {*pins, *(kernel.size if SIZE in pins else ())}
    groups: dict[Values, dict[Values, int]] = {}
    for problem in problems_of(entry, workload, pins):
        values = identity_of(problem)
        of_pins = Values({name: value for name, value in values.items() if name in pinned})
        groups.setdefault(of_pins, {})[values] = kernel.work(problem).bytes
    found = []
    for sizes in groups.values():
        words = _words(next(iter(sizes)))
        found += few(sorted((one for one in sizes if _words(one) == words), key=sizes.__getitem__))[which]
    return found


def _words(problem: Values) -> Values:
    """Return the values of a problem that are not integers, such as its dtype."""
    return Values({name: value for name, value in problem.items() if type(value) is not int})


def at(plan: Plan, wanted: Iterable[Values], is_meant: Callable[[str], bool]) -> list[Point]:
    """Return the points of a plan at some problems, in the problems' order, for the providers that
    ``is_meant`` accepts."""
    found: dict[Values, list[Point]] = {problem: [] for problem in wanted}
    for point in plan.points:
        if point.problem in found and is_meant(point.provider):
            found[point.problem].append(point)
    return [point for points in found.values() for point in points]


def of_provider(entry: Entry, preset: str, name: str | None, pins: Pins, target: Target) -> list[Point]:
    """Return the points of a provider (None: the baseline) at a few problems of a preset or the pinned
    problems, in its default configuration or the pinned configurations.

    Raises UserError for a provider that can't be timed there.
    """
    kernel = entry.loaded.kernel
    (provider,) = chosen_providers(entry, [name or kernel.baseline])
    pins = checked_pins(entry, pins, [provider.name])
    points = []
    reason = unavailable(provider, target)
    if reason is None and target.kind not in provider.devices:
        reason = "needs a GPU"
    for values in few_problems(entry, preset, pins, [provider.name]):
        problem = problems.make(kernel.problem, values)
        for parameters in configurations(provider, {}, pins):
            against = reason or provider.fits(problem, parameters, target.gpu)
            if against:
                raise UserError(f"{provider.name} of {entry.name} can't be timed: {against}.")
            points.append(
                Point(
                    kernel=entry.name,
                    provider=provider.name,
                    problem=values,
                    parameters=problems.values_of(parameters),
                )
            )
    return points


def near_default(kernel: Kernel, points: Sequence[Point]) -> Point:
    """Return the point whose parameters are its provider's defaults, or the nearest to them by the positions
    of the values in the provider's declaration."""

    def distance(point: Point) -> int:
        declared = kernel.provider(point.provider).variables()
        return sum(_steps(variable, point.parameters[name]) for name, variable in declared.items())

    return min(points, key=distance)


def _steps(variable: Variable, value: Value) -> int:
    """Return how far a value is from the default: in positions among the declared values, or in doublings if
    the declaration lists no values."""
    if variable.default is None:
        return 0
    if variable.values is not None:
        return abs(variable.values.index(value) - variable.values.index(variable.default))
    number, default = cast("int", value), cast("int", variable.default)
    return abs(int(number).bit_length() - int(default).bit_length())


def each_provider(
    kernel: Kernel, points: Sequence[Point], timed: Mapping[Point, Measurement]
) -> list[Chosen]:
    """Return each provider's best configuration at each problem of the points, or its default configuration
    if nothing was timed."""
    groups: dict[tuple[str, Values], list[Point]] = {}
    for point in points:
        groups.setdefault((point.provider, point.problem), []).append(point)
    return [Chosen(_best(kernel, group, timed), "provider") for group in groups.values()]


def leading(
    kernel: Kernel, chosen: Sequence[Chosen], timed: Mapping[Point, Measurement], near: float
) -> list[Chosen]:
    """Return the chosen points without the points that are known to be slow.

    At each problem these points stay: the baseline, the points within a factor ``near`` of the fastest of
    their kind, and the points without a valid time.
    """
    groups: dict[Values, dict[Point, float]] = {}
    for point in (one.point for one in chosen if one.point in timed):
        is_doubtful, us = _rank(point, timed)
        if not is_doubtful:
            groups.setdefault(point.problem, {})[point] = us
    far = {
        point
        for times in groups.values()
        for point in times.keys() - near_fastest(kernel, times, near)
        if point.provider != kernel.baseline
    }
    return [one for one in chosen if one.point not in far]


def near_fastest(kernel: Kernel, times: Mapping[Point, float], near: float) -> frozenset[Point]:
    """Return the points that take at most ``near`` times as long as the fastest of their kind. Own providers
    are one kind, all others the other. ``times`` are microseconds at one problem."""
    kinds: dict[bool, dict[Point, float]] = {}
    for point, us in times.items():
        kinds.setdefault(kernel.provider(point.provider).is_own, {})[point] = us
    return frozenset(
        point for some in kinds.values() for point, us in some.items() if us <= near * min(some.values())
    )


def best_default_baseline(
    kernel: Kernel, points: Sequence[Point], timed: Mapping[Point, Measurement]
) -> list[Chosen]:
    """Return the fastest own configuration, the same provider's default configuration, and the baseline, at
    each problem of the points. Without times there is no fastest, and the default belongs to the first own
    provider.
    """
    groups: dict[Values, list[Point]] = {}
    for point in points:
        groups.setdefault(point.problem, []).append(point)
    chosen: list[Chosen] = []
    for group in groups.values():
        own = [point for point in group if kernel.provider(point.provider).is_own]
        known = [point for point in own if point in timed]
        if known:
            best = _best(kernel, known, timed)
            own = [point for point in own if point.provider == best.provider]
            chosen.append(Chosen(best, "best"))
        elif own:
            own = [point for point in own if point.provider == own[0].provider]
        if own:
            chosen.append(Chosen(near_default(kernel, own), "default"))
        baseline = [point for point in group if point.provider == kernel.baseline]
        if baseline:
            chosen.append(Chosen(_best(kernel, baseline, timed), "baseline"))
    # The default may also be the best: such a point is listed once, with both roles.
    first: dict[Point, Chosen] = {}
    for one in chosen:
        known_role = first.get(one.point)
        first[one.point] = one if known_role is None else replace(one, role=f"{known_role.role}, {one.role}")
    return list(first.values())


def _best(kernel: Kernel, points: Sequence[Point], timed: Mapping[Point, Measurement]) -> Point:
    """Return the fastest point; if no point has a time, the point nearest to the default configuration.

    An invalid time is used only if there is no valid time.
    """
    known = [point for point in points if point in timed]
    return min(known, key=partial(_rank, timed=timed)) if known else near_default(kernel, points)


def _rank(point: Point, timed: Mapping[Point, Measurement]) -> tuple[bool, float]:
    outcome = timed[point].outcome
    assert outcome.timing is not None, "a timed point has a timing"
    return bool(outcome.state and not outcome.state.valid), outcome.timing.median_us


def asked(entry: Entry, pins: Pins, providers: Sequence[str] | None) -> Callable[[Point], bool]:
    """Return a predicate for points of these providers (None: all) that have the pinned values. As in a
    sweep, a pin of a parameter binds only the providers that have it. Raises UserError for names and values
    that the kernel does not have."""
    kernel = entry.loaded.kernel
    dimensions = kernel.dimensions()
    wanted = checked_pins(entry, pins, providers)
    sizes = wanted.pop(SIZE, None)
    if sizes is not None:
        wanted |= {name: sizes for name in kernel.size if name not in wanted}

    def fits(point: Point) -> bool:
        values = {name: variable.default for name, variable in dimensions.items()}
        values |= {**point.problem, **point.parameters}
        of_provider = providers is None or point.provider in providers
        return of_provider and all(values[name] in some for name, some in wanted.items() if name in values)

    return fits
