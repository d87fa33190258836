"""The runs that MLflow shows: what one says of the measurements that it stands for, by tags and params."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from colorsys import hls_to_rgb

from kernels.contract import shown
from pipeline.points import notation
from pipeline.points.frozen import Values, digest
from pipeline.points.point import Point, order
from pipeline.reporting import headlines, lines
from pipeline.reporting import mlflow_metrics as metrics
from pipeline.reporting.lines import PlacedMeasurement
from pipeline.reporting.mlflow_content import Run, Value
from pipeline.store.ceilings import Ceilings
from pipeline.store.environment import UNKEYED, Environment
from pipeline.store.record import Origin

SWEEP, AD_HOC, CONFIG, BEST = "sweep", "ad_hoc", "config", "best"
"""The kinds of runs: a ledger's parent, an ad-hoc sweep's parent, a configuration, the best of a provider."""

OURS = {"kernel", "gpu", "provider", "workload", "timer", "cache"}
"""Params that every child run has; a dimension or parameter of such a name is written ``problem.kernel``."""

FAILED = {"incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout"}
"""The statuses of a point that should have worked."""

NOTE_LENGTH = 4000
"""Characters of notes that a tag takes with certainty."""


def configuration(
    group: Sequence[PlacedMeasurement],
    of_parent: str,
    reasons: Mapping[str, Mapping[str, float]],
    suffix: str,
    took: Mapping[int, int],
) -> Run:
    """The run of a configuration on a line."""
    first = group[0]
    what = {
        "provider": first.point.provider,
        "parameters": dict(first.point.parameters),
        "x": first.line.x,
        "problem": dict(first.line.fixed),
        "cache": first.cache,
    }
    values = [
        value
        for one in group
        for value in (*metrics.values(one), *metrics.at_problem(one), *metrics.because(one, reasons))
    ]
    return run(
        group,
        identity=f"{of_parent}/{json.dumps(what, sort_keys=True)}",
        name=lines.configuration(first),
        params=_params(group, first.point.parameters),
        values=tuple(values),
        tags=_of_line(group) | {"kind": CONFIG},
        suffix=suffix,
        took_ms=sum(took[id(one)] for one in group),
    )


def best(group: Sequence[PlacedMeasurement], of_parent: str, took: Mapping[int, int]) -> Run:
    """The run of the fastest configurations of a provider, one for each x."""
    first = group[0]
    provider, words = first.point.provider, notation.words(first.point)
    where = lines.elsewhere(first.point.kernel, first.line)
    values = [
        value
        for one in group
        for value in (*metrics.values(one), *metrics.at_problem(one))
        if value.key in metrics.COMPARED or "_at_" in value.key
    ]
    chosen = {str(one.step): notation.configuration(one.point) for one in group}
    return run(
        group,
        identity=f"{of_parent}/best/{json.dumps([provider, words])}",
        name=" ".join(filter(None, [provider, words, "best", where])),
        params=_params(group, Values({})),
        values=tuple(values),
        tags=_of_line(group)
        | {"kind": BEST, "configurations": ", ".join(f"{x}: {what}" for x, what in chosen.items() if what)},
        suffix="",
        took_ms=sum(took[id(one)] for one in group),
    )


def _of_line(group: Sequence[PlacedMeasurement]) -> dict[str, str]:
    """The tags that say on which line the measurements lie: ``columns``, or ``rows columns=781``."""
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
    took_ms: int,
) -> Run:
    """A run of some measurements: what those of a configuration and of a whole ledger have in common. It ends
    with the newest of them and lasts as long as they took."""
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
        # MLflow's own names: the columns Source and Version.
        "mlflow.source.name": "pipeline.sweep",
        "mlflow.source.git.commit": newest.commit,
        "mlflow.runColor": colour(kernel, gpu, params, name),
    }
    return Run(
        identity=identity,
        name=f"{name} @ {gpu}{suffix}",
        failed=FAILED.issuperset(statuses),
        started_ms=max(one.at_ms for one in placed) - took_ms,
        ended_ms=max(one.at_ms for one in placed),
        tags={key: value for key, value in tags.items() if value},
        params={"kernel": kernel, "gpu": gpu, "workload": workload, **params},
        values=values,
    )


def colour(kernel: str, gpu: str, params: Mapping[str, str], name: str) -> str:
    """The colour of a run's mark and line, ``#rrggbb``: MLflow's own are few, and runs that are compared
    share them. Providers are turns of the golden angle apart on the colour circle. A GPU turns them further
    and makes them more or less grey; a dtype makes them lighter, and a configuration a little."""
    provider, dtype = params.get("provider", ""), params.get("dtype", "")
    entry = headlines.entry_of(kernel)
    names = [one.name for one in entry.loaded.kernel.providers] if entry else []
    place = names.index(provider) if provider in names else _part_of_one("provider", provider)
    hue = (place * GOLDEN + _part_of_one("gpu", gpu)) % 1
    light = LIGHTNESS.get(dtype, 0.4) + 0.1 * (_part_of_one("name", name) - 0.5)
    parts = hls_to_rgb(hue, light, 0.5 + 0.5 * _part_of_one("gpu", gpu))
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


LIGHTNESS = {"float32": 0.32, "float16": 0.45, "bfloat16": 0.58}
"""Of 1; white would be 1, on which nothing lighter can be seen."""

GOLDEN = (3 - math.sqrt(5)) / 2
"""The golden angle in turns: no few multiples of it are near each other."""


def _part_of_one(what: str, text: str) -> float:
    """A number from 0 to below 1 that stands for a text."""
    return int(digest([what, text])[:8], 16) / 16**8


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _notes(placed: Iterable[PlacedMeasurement]) -> list[str]:
    """Why points have no time, or one not to be trusted; a reason that many points share is said once."""
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
    """The provider, the parameters, every dimension that does not vary, and how it was timed."""
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
    """The params that say what a machine is, and what it was measured to do at best."""
    params: dict[str, str] = {}
    if environment:
        told = environment.model_dump(exclude={"gpu", "flags", *UNKEYED}, exclude_none=True)
        params |= {name: str(value) for name, value in told.items()}
        if environment.flags:
            params["flags"] = " ".join(f"{name}={shown(value)}" for name, value in environment.flags.items())
    if ceilings:
        params["ceiling_copy_gbps"] = str(ceilings.copy_gbps)
        params |= {f"ceiling_{name}_tflops": str(tflops) for name, tflops in ceilings.matmul_tflops.items()}
    return params
