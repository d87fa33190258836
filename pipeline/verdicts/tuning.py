"""A kernel's part of the table of tuned configurations, from its ledger and its finals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_pipeline import problems
from kernel_pipeline.contract import Gpu, Kernel, Provider, Tolerance
from kernel_pipeline.ops import rule, source
from kernel_pipeline.ops.growth import Growth, furthest
from kernel_pipeline.ops.table import Configuration, TunedKernel, TunedProblem
from kernel_pipeline.ops.tuned_problems import (
    completed,
    estimated,
    is_within,
    made_parameters,
    takes_inputs,
)
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Measurement, Timing
from kernel_pipeline.records.point import Point, order

from ..keys.identity import Identity
from ..points import notation
from ..points.catalog import Entry
from ..store import retry
from ..store.finals import Final
from . import regret
from .regret import Times

DIGITS = 4
"""Significant digits of a time in a table: the fourth digit already varies between processes."""

NEAR_DIGITS = 3
"""Decimal places of a ratio in a table. The rule's regret is computed with the rounded ratios, as callers use
them."""


@dataclass(frozen=True)
class Measured:
    """A ledger's content at one problem: the rows of configurations that may be called, by label, and the
    labels of configurations that failed. ``prepared`` is the row of a baseline that takes its inputs in
    another form, so that it may not be called; None if there is none. ``swept`` has the label and the
    workload of each row, also of those that don't count."""

    problem: Values
    rows: Mapping[str, Measurement]
    failed: frozenset[str]
    prepared: Measurement | None = None
    swept: frozenset[tuple[str, str]] = frozenset()

    @property
    def times(self) -> dict[str, float]:
        """The times in microseconds, by label."""
        return {label: timing(row).median_us for label, row in self.rows.items()}


def may_be_called(kernel: Kernel, provider: Provider) -> bool:
    """Whether a caller of the kernel may get this provider: an own provider or the baseline. A provider that
    ``torch.compile`` makes takes seconds at each shape, and a provider with its own reference or prepared
    weights takes other inputs, so callers get neither."""
    own = provider.is_own or provider.name == kernel.baseline
    return own and not provider.compiled and takes_inputs(provider)


def measured(entry: Entry, rows: Iterable[Measurement], identity: Identity | None) -> list[Measured]:
    """Return the ledger's content at each problem, in the problems' order.

    Takes the newest row of each point, with any timing settings but a cold cache. With an ``identity``, rows
    must have the current source, measurement version and environment. Without an identity, old rows are used
    too, if their configuration still exists. Points that the next sweep tries again count as not measured. A
    configuration that was incorrect at one problem is left out at every problem; the baseline, whose errors
    are not ours, at that one. Times of a throttled GPU are upper bounds. They count at a problem where the
    fastest of them is below all other times: there the GPU can't hold its clocks while it runs the fastest
    configurations.
    """
    kernel = entry.loaded.kernel
    newest: dict[Point, Measurement] = {}
    prepared: dict[Values, Measurement] = {}
    for row in sorted(rows, key=lambda one: one.origin.measured_at):
        point = row.point if identity is not None else _with_defaults(kernel, row.point)
        if (
            not problems.declares(kernel, point)
            or (row.outcome.timing is not None and row.outcome.timing.cache != "cold")
            or (identity is not None and not is_current(row, identity))
        ):
            continue
        if retry.is_due(row, "passing"):
            newest.pop(point, None)
            continue
        if may_be_called(kernel, kernel.provider(point.provider)):
            newest[point] = row if point == row.point else row.replace(point=point)
        elif point.provider == kernel.baseline and row.outcome.timing is not None and _is_valid(row):
            prepared[point.problem] = row
    kept = list(newest.values())
    wrong = {
        notation.label(row.point)
        for row in kept
        if row.outcome.status == "incorrect" and row.point.provider != kernel.baseline
    }
    found: dict[Values, dict[str, Measurement]] = {}
    throttled: dict[Values, dict[str, Measurement]] = {}
    failed: dict[Values, set[str]] = {}
    for row in sorted(kept, key=lambda one: order(one.point)):
        name, state = notation.label(row.point), row.outcome.state
        if row.outcome.timing is None and row.outcome.status != "verified":
            failed.setdefault(row.point.problem, set()).add(name)
        elif row.outcome.timing is not None and name not in wrong:
            if _is_valid(row):
                found.setdefault(row.point.problem, {})[name] = row
            elif state is not None and state.throttle is not None:
                throttled.setdefault(row.point.problem, {})[name] = row
    _add_bounds(found, throttled)
    ordered = sorted(found, key=lambda one: order(next(iter(found[one].values())).point)[2:4])
    swept: dict[Values, set[tuple[str, str]]] = {}
    for row in kept:
        swept.setdefault(row.point.problem, set()).add((notation.label(row.point), row.workload))
    return [
        Measured(one, found[one], frozenset(failed.get(one, ())), prepared.get(one), frozenset(swept[one]))
        for one in ordered
    ]


def _add_bounds(
    found: dict[Values, dict[str, Measurement]], throttled: Mapping[Values, Mapping[str, Measurement]]
) -> None:
    """Add a problem's times of a throttled GPU if the fastest of them is below all other times."""
    for problem, bounds in throttled.items():
        others = found.setdefault(problem, {})
        if not others or fastest(bounds) < fastest(others):
            others.update(bounds)


def lacking(kernel: Kernel, some: Sequence[Measured], gpu: Gpu | None) -> list[list[str]]:
    """Return for each problem the labels of configurations that fit and have times at other problems of its
    workload, but no result here, as after an interrupted sweep. If a problem is of several workloads, that
    which lacks the fewest counts. The baseline is never lacking."""
    tried: dict[str, dict[str, Point]] = {}
    for one in some:
        for name, row in one.rows.items():
            if row.point.provider != kernel.baseline:
                tried.setdefault(row.workload, {})[name] = row.point

    def fits(point: Point, problem: object) -> bool:
        provider = kernel.provider(point.provider)
        return provider.fits(problem, made_parameters(provider, point.parameters), gpu) is None

    def of_workload(one: Measured, workload: str) -> list[str]:
        problem, here = problems.make(kernel.problem, one.problem), {name for name, _ in one.swept}
        points = tried[workload].items()
        return sorted(name for name, point in points if name not in here and fits(point, problem))

    workloads = [sorted({name for _, name in one.swept if name in tried}) for one in some]
    return [
        min((of_workload(one, name) for name in names), key=len, default=[])
        for one, names in zip(some, workloads, strict=True)
    ]


def _is_valid(row: Measurement) -> bool:
    return row.outcome.state is None or row.outcome.state.valid


def fastest(rows: Mapping[str, Measurement]) -> float:
    """Return the shortest time of some rows, in microseconds."""
    return min(timing(row).median_us for row in rows.values())


def is_current(row: Measurement, identity: Identity) -> bool:
    """Whether a row has the current source, measurement version and environment."""
    return not set(row.parts.differences(identity.parts(row.point))) - {"settings"}


def of_kernel(
    entry: Entry, some: Sequence[Measured], finals: Iterable[Final], gpu: Gpu | None, l2_bytes: int
) -> TunedKernel | None:
    """Return a kernel's part of the table of a GPU, or of a CPU; None if nothing was measured.

    ``finals`` are the newest finals of each problem. They decide which configuration is the fastest, unless
    they lack the provider that is the fastest of the rows, because its source was edited since.
    """
    if not some:
        return None
    kernel = entry.loaded.kernel
    held: dict[Values, list[Final]] = {}
    for final in finals:
        if final.power == "burst":
            held.setdefault(final.point.problem, []).append(final)
    times = times_of(entry, some, l2_bytes)
    known = configurations_of(some)
    lacks = lacking(kernel, some, gpu)
    regions = regret.regions(with_estimates(kernel, times, lacks), Growth(kernel, known, gpu))
    near = {name for one in times for name in one.tuned.near}
    made = [
        _problem(kernel, one, held.get(one.problem, ()), its.tuned, [name for name in names if name in near])
        for one, its, names in zip(some, times, lacks, strict=True)
    ]
    named = {name for one in made for name in (one.best, one.runner_up, *one.near) if name}
    named |= {name for one in regions for labels in one.fallback.values() for name in labels}
    configurations = {name: known[name] for name in sorted(named)}
    providers = sorted({one.provider for one in configurations.values()})
    tried = {one.provider for one in known.values()}
    tried |= {name.partition(" ")[0] for one in some for name in one.failed}
    return TunedKernel(
        measured=sorted(tried),
        sources={name: source.digest(entry.loaded, name) for name in providers},
        configurations=configurations,
        regions=regions,
        problems=made,
    )


def configurations_of(some: Sequence[Measured]) -> dict[str, Configuration]:
    """Return all configurations with a time, by label."""
    points = {name: row.point for one in some for name, row in one.rows.items()}
    return {name: Configuration(one.provider, dict(one.parameters)) for name, one in points.items()}


def times_of(entry: Entry, some: Sequence[Measured], l2_bytes: int) -> list[Times]:
    """Return the times of all configurations at each problem, with the inputs of the tuning rule's regret."""
    kernel = entry.loaded.kernel
    most = furthest(kernel)
    found = []
    for one in some:
        best = min(one.times.values())
        near = {name: round(us / best, NEAR_DIGITS) for name, us in ranked(one) if us <= most * best}
        complete = completed(kernel, one.problem)
        is_small = is_within(kernel, problems.make(kernel.problem, one.problem), l2_bytes)
        defaults = {name for name, row in one.rows.items() if _is_default(kernel, row.point)}
        baseline = next((us for name, us in ranked(one) if _is_of(one, name, kernel.baseline)), None)
        problem = rule.Tuned(complete, is_small, near, one.failed, best, baseline)
        found.append(Times(problem, one.times, frozenset(defaults)))
    return found


def with_estimates(kernel: Kernel, times: Sequence[Times], lacks: Sequence[Sequence[str]]) -> list[Times]:
    """Return the times as the rule takes them: with estimates for the configurations that each problem lacks,
    and without problems at which the baseline alone was tried."""
    tuned = estimated(kernel, [one.tuned for one in times], lacks)
    return compared(kernel, [replace(one, tuned=each) for one, each in zip(times, tuned, strict=True)])


def compared(kernel: Kernel, times: Sequence[Times]) -> list[Times]:
    """Return the times without those of problems at which the baseline alone was tried."""
    return [
        one
        for one in times
        if any(label.partition(" ")[0] != kernel.baseline for label in (*one.us, *one.tuned.failed))
    ]


def _with_defaults(kernel: Kernel, point: Point) -> Point:
    """Return an old point with the defaults of parameters that its provider has gained since."""
    try:
        declared = kernel.provider(point.provider).variables()
    except KeyError:
        return point
    added = {name: one.default for name, one in declared.items() if name not in point.parameters}
    values = {**point.parameters, **{name: value for name, value in added.items() if value is not None}}
    return point.replace(parameters=Values(values))


def ranked(one: Measured) -> list[tuple[str, float]]:
    """Return a problem's configurations with their times in microseconds, the fastest first."""
    return sorted(one.times.items(), key=lambda each: (each[1], each[0]))


def timing(row: Measurement) -> Timing:
    """Return the timing of a row that has one."""
    assert row.outcome.timing is not None, "it was timed"
    return row.outcome.timing


def _problem(
    kernel: Kernel, one: Measured, held: Sequence[Final], tuned: rule.Tuned, lacking: Sequence[str]
) -> TunedProblem:
    """Return a table's entry for a problem. It comes from finals if these have the provider that is the
    fastest of the rows, with the range of the rounds as interval; else from the sweep, with the interval of
    the median."""
    made = problems.make(kernel.problem, one.problem)
    keys = {row.key: name for name, row in one.rows.items()}
    rounds = {keys[final.key]: final for final in held if final.key in keys}
    fastest_swept = one.rows[ranked(one)[0][0]].point.provider
    by_finals = any(_is_of(one, name, fastest_swept) for name in rounds)
    if by_finals:
        order_of = sorted(((name, one.median_us) for name, one in rounds.items()), key=lambda each: each[1])
        best, us = order_of[0]
        interval = (min(rounds[best].rounds_us), max(rounds[best].rounds_us))
    else:
        order_of = ranked(one)
        best, us = order_of[0]
        half = timing(one.rows[best]).rel_ci * us
        interval = (us - half, us + half)
    row = one.rows[best]
    others = [each for each in order_of if not _is_of(one, each[0], row.point.provider)]
    of_baseline = [us for name, us in order_of if _is_of(one, name, kernel.baseline)]
    if one.prepared is not None:
        finals = [final.median_us for final in held if final.key == one.prepared.key]
        of_baseline = finals if by_finals else [timing(one.prepared).median_us]
    baseline = next(iter(of_baseline), None)
    assert row.outcome.max_abs_err is not None, "it was verified"
    return TunedProblem(
        problem=dict(one.problem),
        within_l2=tuned.within_l2,
        best=best,
        us=_short(us),
        interval_us=[_short(each) for each in interval],
        source="finals" if by_finals else "sweep",
        runner_up=others[0][0] if others else None,
        runner_up_us=_short(others[0][1]) if others else None,
        baseline_us=None if baseline is None else _short(baseline),
        tolerance=[[each.rtol, each.atol] for each in _tolerances(kernel, made)],
        max_abs_err=_short(row.outcome.max_abs_err),
        commit=row.origin.commit[:10],
        near=tuned.near,
        failed=sorted(one.failed),
        lacking=lacking,
    )


def _is_of(one: Measured, label: str, provider: str) -> bool:
    return one.rows[label].point.provider == provider


def _tolerances(kernel: Kernel, problem: object) -> tuple[Tolerance, ...]:
    found = kernel.tolerance(problem)
    return found if isinstance(found, tuple) else (found,)


def _is_default(kernel: Kernel, point: Point) -> bool:
    """Whether a configuration is its provider's default; a provider without parameters has only this
    configuration."""
    declared = kernel.provider(point.provider).variables()
    return all(point.parameters[name] == one.default for name, one in declared.items())


def _short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
