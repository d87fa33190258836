"""Build the MLflow runs of measurements, with their tags and params."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernel_pipeline.declared import shown
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import UNKEYED, Environment
from kernel_pipeline.records.measurement import Origin
from kernel_pipeline.records.point import Point, order

from ..points import notation
from ..reporting import headlines, lines
from ..reporting.lines import PlacedMeasurement
from . import metrics
from .run_families import Run, Value

SWEEP, AD_HOC, CONFIG, BEST = "sweep", "ad_hoc", "config", "best"
"""The kinds of runs: parent of a ledger, parent of an ad-hoc sweep, configuration, best of a provider."""

OURS = {"kernel", "gpu", "provider", "workload", "timer", "cache"}
"""Params of every child run. A dimension with one of these names gets a prefix, as in ``problem.kernel``."""

FAILED = {"incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout"}
"""The statuses of points that failed. A run fails if all of its points did."""

NOTE_LENGTH = 4000
"""The maximum number of characters of notes; every store accepts a tag of this length."""


def configuration(
    group: Sequence[PlacedMeasurement], parent: str, reasons: Mapping[str, Mapping[str, float]], suffix: str
) -> Run:
    """Return the run of one configuration on one line."""
    first = group[0]
    identity = {
        "provider": first.point.provider,
        "parameters": dict(first.point.parameters),
        "x": first.line.x,
        "problem": dict(first.line.fixed),
        "cache": first.cache,
    }
    values = [
        value
        for one in group
        for value in (*metrics.values(one), *metrics.at_problem(one), *metrics.reasons(one, reasons))
    ]
    return run(
        group,
        identity=f"{parent}/{json.dumps(identity, sort_keys=True)}",
        name=lines.configuration(first),
        params=_params(group, first.point.parameters),
        values=tuple(values),
        tags=_line_tags(group) | {"kind": CONFIG},
        suffix=suffix,
    )


def best(group: Sequence[PlacedMeasurement], parent: str) -> Run:
    """Return the run of a provider's fastest configurations, one configuration for each x."""
    first = group[0]
    provider, named = first.point.provider, notation.words(first.point)
    where = lines.elsewhere(first.point.kernel, first.line)
    values = [
        value
        for one in group
        for value in (*metrics.values(one), *metrics.at_problem(one))
        if value.key in metrics.COMPARED or "_at_" in value.key
    ]
    tuned = [
        f"{one.step}: {notation.configuration(one.point)}"
        for one in group
        if notation.configuration(one.point)
    ]
    return run(
        group,
        identity=f"{parent}/best/{json.dumps([provider, named])}",
        name=" ".join(filter(None, [provider, named, "best", where])),
        params=_params(group, Values({})),
        values=tuple(values),
        tags=_line_tags(group) | {"kind": BEST, "configurations": ", ".join(tuned)},
        suffix="",
    )


def _line_tags(group: Sequence[PlacedMeasurement]) -> dict[str, str]:
    """Return the tags that describe the measurements' line. ``line`` is ``columns``, or ``rows columns=781``
    with fixed dimensions."""
    first = group[0]
    x = first.line.x or ""
    return {
        "x": x,
        "line": " ".join(filter(None, [x, lines.elsewhere(first.point.kernel, first.line)])),
        "headline": _joined(headlines.headline_of(one.row) for one in group),
        "environment": max(group, key=lambda one: one.at_ms).row.parts.environment,
    }


def run(
    placed: Sequence[PlacedMeasurement],
    *,
    identity: str,
    name: str,
    params: Mapping[str, str],
    values: tuple[Value, ...],
    tags: Mapping[str, str],
    suffix: str,
) -> Run:
    """Return a run of measurements that starts at the oldest and ends at the newest. Parent and child runs
    share this code."""
    kernel, gpu = placed[0].point.kernel, placed[0].row.origin.gpu
    newest: Origin = max(placed, key=lambda one: one.at_ms).row.origin
    statuses = Counter(one.row.outcome.status for one in placed)
    workload = _joined(one.row.workload for one in placed)
    tags = {
        **tags,
        "kernel": kernel,
        "gpu": gpu,
        "workload": workload,
        "commit": newest.commit,
        "dirty": shown(any(one.row.origin.dirty for one in placed)),
        "tool": newest.tool or "",
        "run": newest.run,
        "command": newest.command,
        "image": newest.image or "",
        "base_image": newest.base_image or "",
        "status": next(iter(statuses)) if len(statuses) == 1 else "mixed",
        "points": ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())),
        "notes": "; ".join(_notes(placed))[:NOTE_LENGTH],
        # MLflow shows these two in its columns Source and Version.
        "mlflow.source.name": "pipeline.sweep",
        "mlflow.source.git.commit": newest.commit,
    }
    return Run(
        identity=identity,
        name=f"{name} @ {gpu}{suffix}",
        failed=FAILED.issuperset(statuses),
        started_ms=min(one.at_ms for one in placed),
        ended_ms=max(one.at_ms for one in placed),
        tags={key: value for key, value in tags.items() if value},
        params={"kernel": kernel, "gpu": gpu, "workload": workload, **params},
        values=values,
    )


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _notes(placed: Iterable[PlacedMeasurement]) -> list[str]:
    """Return the reasons for missing and untrusted times. Points with the same reason share a sentence."""
    reasons: dict[str, list[Point]] = {}
    for one in placed:
        outcome = one.row.outcome
        if outcome.error:
            reasons.setdefault(f"{outcome.status}: {outcome.error}", []).append(one.point)
        elif outcome.status == "verified":
            reasons.setdefault("right, but this machine can't time it", []).append(one.point)
        elif outcome.state and not one.trusted:
            reasons.setdefault(f"not to be trusted: {outcome.state.invalid_reason}", []).append(one.point)
    return [
        f"at {', '.join(dict.fromkeys(map(notation.extent, sorted(points, key=order))))}: {reason}"
        for reason, points in reasons.items()
    ]


def _params(group: Sequence[PlacedMeasurement], parameters: Values) -> dict[str, str]:
    """Return the params of a group: provider, parameters, dimensions that do not vary, timer and cache."""
    first = group[0].point
    params = {"provider": first.provider}
    constant = {
        name: value
        for name, value in first.problem.items()
        if len({one.point.problem.get(name) for one in group}) == 1
    }
    for kind, values in (("problem", constant), ("parameter", parameters)):
        params |= {
            (f"{kind}.{name}" if name in OURS else name): shown(value) for name, value in values.items()
        }
    timings = [one.row.outcome.timing for one in group if one.row.outcome.timing]
    if timings:
        params["timer"] = _joined(timing.timer for timing in timings)
        params["cache"] = _joined(timing.cache for timing in timings)
    return params


def machine(environment: Environment | None, ceilings: Ceilings | None) -> dict[str, str]:
    """Return the params that describe a machine and its ceilings."""
    params: dict[str, str] = {}
    if environment:
        known = environment.to_dict(exclude={"gpu", "flags", *UNKEYED})
        params |= {name: str(value) for name, value in known.items() if value is not None}
        if environment.flags:
            params["flags"] = " ".join(f"{name}={shown(value)}" for name, value in environment.flags.items())
    if ceilings:
        params["ceiling_copy_gbps"] = str(ceilings.copy_gbps)
        params |= {f"ceiling_{name}_tflops": str(tflops) for name, tflops in ceilings.matmul_tflops.items()}
    return params
