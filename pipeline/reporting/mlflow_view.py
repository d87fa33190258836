"""What MLflow shows of results and of ad-hoc sweeps, as ``mlflow_publish.py`` writes it.

An experiment a kernel; in it a parent run for each GPU (``softmax @ nvidia-h200``), and below it a child run
for each configuration on each line of problems (``lines.py``). A line runs along its workload's x axis, whose
values are the steps of the metrics, so that the UI draws rates against it; dimensions that stay the same are
the run's params. The same again for each ad-hoc sweep, under the id of its run. All of it can be made again
from the files.
"""

from __future__ import annotations

import itertools
import json
import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from kernels.contract import shown
from pipeline import ROOT, UserError
from pipeline.points.frozen import Values, digest
from pipeline.points.point import Point, order
from pipeline.reporting import frames, lines, ratios
from pipeline.reporting.lines import HOT, Line, Placed
from pipeline.reporting.mlflow_store import LedgerRuns, Run, Value
from pipeline.reporting.why import longest, native
from pipeline.store import evidence, finals, results
from pipeline.store.ceilings import Ceilings
from pipeline.store.comparisons import Comparison
from pipeline.store.environment import UNKEYED, Environment
from pipeline.store.evidence import Evidence
from pipeline.store.finals import Final
from pipeline.store.record import Measurement, Origin
from pipeline.store.results import Results
from pipeline.store.runs import Heading, is_ad_hoc
from pipeline.verdicts.statistics import Verdict

TIMED = ("median_us", "p20_us", "p80_us", "min_us", "rel_ci")
RATES = ("gbps", "tflops", "ceiling_fraction")
STATE = ("sm_clock_mhz", "mem_clock_mhz", "temperature_c", "power_w")
ERRORS = ("max_abs_err", "max_rel_err")
"""The fields of a measurement that become metrics, where they have a value."""

RESOURCES = ("registers", "shared", "occupancy")
COUNTED = (
    *("memory_throughput_pct", "compute_throughput_pct", "dram_throughput_pct", "dram_gbps"),
    *("dram_read_bytes", "dram_write_bytes", "l1_hit_pct", "l2_hit_pct"),
    *("achieved_occupancy_pct", "theoretical_occupancy_pct", "waves_per_sm", "local_bytes"),
    *("sectors_per_load", "sectors_per_store", "estimated_speedup_pct", "runtime_improvement_us"),
)
"""The fields of rows of generated code and of counters that become metrics; beside them stands what ncu's row
calls duration_us, as ``counted_us``."""

OURS = {"kernel", "gpu", "provider", "workload", "timer", "cache"}
"""Params that every child run has; a dimension or parameter of such a name is written ``problem.kernel``."""

BESIDE = {".ptx", ".sass", ".ttgir"}
"""Texts that a listing shows already; they stay beside it and are not uploaded."""

FAILED = {"incorrect", "compile_error", "runtime_error", "out_of_memory", "timeout"}
"""The statuses of a point that should have worked."""

NOTE_LENGTH = 4000
"""Characters of notes that a tag takes with certainty."""


MOST_NOTED = 20
"""Rows of a comparison in its description, which a tag has to take; the others are in its files."""

AD_HOC = "ad_hoc"
"""The kind of an ad-hoc sweep's parent run; a ledger's is ``sweep``."""


def read(
    input: Path,
    kernel: str | None = None,
    reports: Path | None = None,
    artifacts: Path | None = None,
    gpu: str | None = None,
) -> list[LedgerRuns]:
    """What MLflow is to show of the ledgers below ``input``, or of one kernel's or one machine's.

    Raises UserError for an input that is not there.
    """
    if not any(folder.is_dir() for folder in results.folders_of(input)):
        raise UserError(f"input={input} is not there; `dvc repro` makes results, input=FOLDER names others.")
    loaded = results.load(input, warn)
    found = evidence.load(input, warn)
    held = {place: finals.newest(rows) for place, rows in finals.load(input, warn).items()}
    ledgers = itertools.groupby(loaded.measurements, key=lambda row: (row.point.kernel, row.origin.gpu))
    return [
        sweep(
            list(rows),
            loaded,
            found,
            files(name, slug, loaded.kernels, input, reports, artifacts),
            input,
            held.get((name, slug), ()),
        )
        for (name, slug), rows in ledgers
        if kernel in (None, name) and gpu in (None, slug)
    ]


def warn(sentence: str) -> None:
    """Tell the user of a file or a line that was skipped."""
    print(f"warning: {sentence}", file=sys.stderr)


# One ledger


def sweep(
    rows: Sequence[Measurement],
    loaded: Results,
    found: Evidence,
    artifacts: Mapping[str, Path],
    input: Path = ROOT / "results",
    held: Sequence[Final] = (),
) -> LedgerRuns:
    """What MLflow shows of one ledger below ``input``, and of its points that had finals."""
    kernel, gpu = rows[0].point.kernel, rows[0].origin.gpu
    environment = loaded.environments.get(gpu)
    parent, children = _family(
        lines.place(rows),
        identity=f"{kernel}/{gpu}{_whose(input, environment)}",
        kind="sweep",
        environment=environment,
        ceilings=loaded.ceilings.get(gpu),
        reasons=with_finals(explained(found, kernel, gpu), held),
    )
    return LedgerRuns(len(rows), parent, children, f"tags.gpu = '{gpu}'", artifacts)


def ad_hoc(heading: Heading, rows: Sequence[Measurement], record: Path) -> LedgerRuns:
    """What MLflow shows of what one ad-hoc sweep measured."""
    parent, children = _family(
        lines.place(rows),
        identity=ad_hoc_identity(heading),
        kind=AD_HOC,
        environment=heading.environment,
        ceilings=heading.ceilings,
        tags={"changed": ", ".join(f"{count} {what}" for what, count in heading.changed.items())},
        suffix=f", {heading.run}",
    )
    files = {f"runs/{record.name}": record}
    return LedgerRuns(len(rows), parent, children, f"tags.run = '{heading.run}'", files, stays=True)


def comparison(found: Comparison, file: Path, links: Mapping[str, str]) -> LedgerRuns:
    """What MLflow shows of a comparison; ``links`` are the runs of its sides, by the tag that names each."""
    name = f"{found.kernel}/{found.gpu}/{file.stem}"
    at = int(found.at.timestamp() * 1000)
    counts = Counter(row.verdict for row in found.rows)
    logs = [math.log(row.ratio) for row in found.rows]
    values = [Value(word, float(counts[word]), 0, at) for word in get_args(Verdict)]
    values += [Value("b_over_a", math.exp(math.fsum(logs) / len(logs)), 0, at)] if logs else []
    noted = [ratios.compared(row) for row in found.rows[:MOST_NOTED]]
    run = Run(
        identity=f"comparison/{name}",
        name=f"{found.kernel}: {found.a.name}..{found.b.name} @ {found.gpu}",
        failed=False,
        started_ms=at,
        ended_ms=at,
        tags={
            "kind": "comparison",
            "comparison": name,
            "kernel": found.kernel,
            "gpu": found.gpu,
            "run": found.run,
            "command": found.command,
            "mlflow.source.name": "pipeline.compare",
            "mlflow.source.git.commit": found.b.commit or "",
            "mlflow.note.content": ratios.markdown(noted, name),
            **links,
        },
        params={
            **{"kernel": found.kernel, "gpu": found.gpu, "a": found.a.name, "b": found.b.name},
            **{"commit_a": found.a.commit or "", "commit_b": found.b.commit or ""},
            **{"margin": str(found.margin), "beyond": found.beyond},
        },
        values=tuple(values),
    )
    beside = {f"comparison/{one.name}": one for one in sorted(file.parent.glob(f"{file.stem}.*"))}
    return LedgerRuns(len(found.rows), run, (), f"tags.comparison = '{name}'", beside)


def ad_hoc_identity(heading: Heading) -> str:
    """Whose the runs of an ad-hoc sweep are: its own, in whatever folder its record lies."""
    return f"run/{heading.run}"


def _whose(input: Path, environment: Environment | None) -> str:
    """What tells ledgers of one kernel and machine apart, so that nobody's runs stand for another's: a CPU's
    host, and a folder that is not the repository's own results."""
    host = environment.host if environment else None
    folder = input.resolve()
    words = [f"on {host}"] if host else []
    if is_ad_hoc(folder):
        words.append(f"of {folder.name} {digest([platform.node(), str(folder)])}")
    return "".join(f" {word}" for word in words)


def _family(
    placed: Sequence[Placed],
    *,
    identity: str,
    kind: str,
    environment: Environment | None,
    ceilings: Ceilings | None,
    reasons: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
    suffix: str = "",
) -> tuple[Run, tuple[Run, ...]]:
    """A parent run for some measurements of one kernel on one machine, and a child run for each of their
    configurations on a line. ``reasons`` are the metrics that explain a measurement, by its key; the names
    end with ``suffix``."""
    groups: dict[tuple[str, Values, Line, str], list[Placed]] = {}
    for one in placed:
        key = (one.point.provider, one.point.parameters, one.line, one.cache)
        groups.setdefault(key, []).append(one)
    parent = _run(
        placed,
        identity=identity,
        name=placed[0].point.kernel,
        params=_machine(environment, ceilings),
        values=_summary(placed),
        tags={**tags, "kind": kind, "environment": environment.digest if environment else ""},
        suffix=suffix,
    )
    return parent, tuple(_child(group, identity, reasons, suffix) for group in groups.values())


# Runs


def _child(
    group: Sequence[Placed], of_parent: str, reasons: Mapping[str, Mapping[str, float]], suffix: str
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
    return _run(
        group,
        identity=f"{of_parent}/{json.dumps(what, sort_keys=True)}",
        name=lines.configuration(first),
        params=_params(group),
        values=tuple(value for one in group for value in (*_values(one), *_reasons(one, reasons))),
        tags={
            "kind": "config",
            "x": first.line.x or "",
            "headline": _joined(frames.headline(one.point.kernel, one.row.workload) for one in group),
            "environment": max(group, key=lambda one: one.at_ms).row.parts.environment,
        },
        suffix=suffix,
    )


def _run(
    placed: Sequence[Placed],
    *,
    identity: str,
    name: str,
    params: Mapping[str, str],
    values: tuple[Value, ...],
    tags: Mapping[str, str],
    suffix: str,
) -> Run:
    """A run of some measurements: what those of a configuration and of a whole ledger have in common."""
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


def _notes(placed: Iterable[Placed]) -> list[str]:
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
        f"at {', '.join(dict.fromkeys(map(lines.extent, sorted(points, key=order))))}: {reason}"
        for reason, points in reasons.items()
    ]


def _params(group: Sequence[Placed]) -> dict[str, str]:
    """The provider, its parameters, every dimension that does not vary, and how it was timed."""
    first = group[0].point
    params = {"provider": first.provider}
    constant = {
        name: value
        for name, value in first.problem.items()
        if len({one.point.problem.get(name) for one in group}) == 1
    }
    for kind, values in (("problem", constant), ("parameter", first.parameters)):
        params |= {
            (f"{kind}.{name}" if name in OURS else name): shown(value) for name, value in values.items()
        }
    timings = [one.row.outcome.timing for one in group if one.row.outcome.timing]
    if timings:
        params["timer"] = _joined(timing.timer for timing in timings)
        params["cache"] = _joined(timing.cache for timing in timings)
    return params


def _machine(environment: Environment | None, ceilings: Ceilings | None) -> dict[str, str]:
    params: dict[str, str] = {}
    if environment:
        told = environment.model_dump(exclude={"gpu", "flags", *UNKEYED}, exclude_none=True)
        params |= {name: str(value) for name, value in told.items()}
        if environment.flags:
            params["flags"] = lines.spelled(environment.flags)
    if ceilings:
        params["ceiling_copy_gbps"] = str(ceilings.copy_gbps)
        params |= {f"ceiling_{name}_tflops": str(tflops) for name, tflops in ceilings.matmul_tflops.items()}
    return params


# Metrics


def _values(one: Placed) -> list[Value]:
    """A point's numbers: its times only if it was timed, its errors only if it was right."""
    outcome = one.row.outcome
    if outcome.status not in ("ok", "verified"):
        return []
    parts = ((TIMED, outcome.timing), (RATES, one.row.rate), (STATE, outcome.state), (ERRORS, outcome))
    numbers = {name: getattr(part, name) for names, part in parts if part is not None for name in names}
    return [
        Value(name, float(number), one.step, one.at_ms)
        for name, number in numbers.items()
        if number is not None and math.isfinite(number)
    ]


def _reasons(one: Placed, reasons: Mapping[str, Mapping[str, float]]) -> list[Value]:
    """What explains a point, at its step."""
    return [Value(name, value, one.step, one.at_ms) for name, value in reasons.get(one.row.key, {}).items()]


def explained(found: Evidence, kernel: str, gpu: str) -> dict[str, dict[str, float]]:
    """By the key of a measurement the metrics that explain it: what its code asks for, what it launches, and
    what was counted of its longest kernel."""
    metrics: dict[str, dict[str, float]] = {}
    for key, row in native(found.code.get((kernel, gpu), ())).items():
        assert row.mix is not None, "only counted code is native"
        numbers = {name: getattr(row, name) for name in RESOURCES} | {"spilled_bytes": row.mix.spilled_bytes}
        metrics[key] = {name: float(value) for name, value in numbers.items() if value is not None}
    for profile in found.profiles.get((kernel, gpu), ()):
        numbers = {"device_launches": profile.launches, "profiled_device_us": profile.device_us}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        if profile.key is not None and known:
            metrics[profile.key] = metrics.get(profile.key, {}) | known
    for key, counted in longest(found.counters.get((kernel, gpu), ())).items():
        numbers = {name: getattr(counted, name) for name in COUNTED} | {"counted_us": counted.duration_us}
        if "registers" not in metrics.get(key, {}):
            # No code of it was taken apart, as of torch's own kernels; ncu sees the same of its launch.
            held = counted.theoretical_occupancy_pct
            numbers |= {"registers": counted.registers, "occupancy": None if held is None else held / 100}
        known = {name: float(value) for name, value in numbers.items() if value is not None}
        metrics[key] = metrics.get(key, {}) | known
    return metrics


def with_finals(
    reasons: Mapping[str, Mapping[str, float]], held: Iterable[Final]
) -> dict[str, Mapping[str, float]]:
    """The same with what finals say of a measurement's point: its time side by side with the others, and over
    the fastest of ours."""
    found = dict(reasons)
    for row in held:
        if row.power == "burst":
            over = {} if row.against is None else {"final_over_ours": row.against.ratio}
            found[row.key] = {**found.get(row.key, {}), "final_us": row.median_us, **over}
    return found


def _summary(placed: Sequence[Placed]) -> tuple[Value, ...]:
    """What the parent shows: how the points ended, and along the kernel's main line the best that any
    configuration reached, of all words together and of each."""
    at = max(one.at_ms for one in placed)
    counts = Counter(f"points_{one.row.outcome.status}" for one in placed)
    points = [Value(name, count, 0, at) for name, count in {"points": len(placed), **counts}.items()]
    best: dict[tuple[str, int], tuple[bool, Value]] = {}
    for one in _main(placed):
        words = re.sub(r"\W+", "_", lines.words(one.point))
        headline = frames.headline(one.point.kernel, one.row.workload)
        for value in _values(one):
            names = [value.key] if value.key in RATES else []
            names += [f"best_{headline}_{words}"] if value.key == headline and words else []
            for name in names:
                candidate = one.trusted, value._replace(key=name)
                best[name, value.step] = max(best.get((name, value.step), candidate), candidate)
    return (*sorted(points), *sorted(value for _, value in best.values()))


def _main(placed: Iterable[Placed]) -> list[Placed]:
    """The measurements on the line that stands for the kernel: with cold inputs and along its size, all else
    at its default, where there are such; else on the longest."""
    on_line: dict[tuple[bool, str, str], list[Placed]] = {}
    for one in placed:
        where = lines.elsewhere(one.point.kernel, one.line)
        on_line.setdefault((one.cache == HOT, where, one.line.x or ""), []).append(one)

    def rank(line: tuple[tuple[bool, str, str], list[Placed]]) -> tuple[bool, bool, int, str]:
        (hot, where, _), found = line
        return hot, bool(where), -len({one.step for one in found}), where

    return min(on_line.items(), key=rank)[1]


# Files


def files(
    kernel: str,
    gpu: str,
    kernels: Sequence[str],
    input: Path,
    reports: Path | None = None,
    artifacts: Path | None = None,
) -> dict[str, Path]:
    """The files that belong to one ledger, by their path among the parent run's artifacts.

    Of the reports, those that no other kernel's name is part of the path of. On a host without a GPU they lie
    with what is this host's own. A file that a link leads to outside of its folder is not among them.
    """
    found = {
        f"results/{path.relative_to(folder)}": path
        for folder in results.folders_of(input)
        for path in (
            results.ledger_path(folder, kernel, gpu),
            results.config_path(folder, kernel, gpu),
            results.environment_path(folder, gpu),
            results.ceilings_path(folder, gpu),
            results.build_path(folder, kernel, gpu),
            results.codegen_path(folder, kernel, gpu),
            results.profile_path(folder, kernel, gpu),
            results.counters_path(folder, kernel, gpu),
        )
        if path.is_file() and results.inside(folder, path)
    }
    if artifacts:
        for kind in ("profile", "counters", "codegen"):
            folder = artifacts / kind / kernel
            for path in sorted([*folder.glob(f"{gpu}.*"), *(folder / gpu).rglob("*")]):
                if path.suffix not in BESIDE and results.inside(artifacts, path):
                    found[f"artifacts/{kind}/{path.name}"] = path
    if reports:
        own = results.folder_for(reports, "cpu")
        chosen = own if own.is_dir() else reports
        for path in sorted(chosen.rglob("*")):
            parts = path.relative_to(chosen).parts
            owners = {owner for part in parts if (owner := _owner(part, kernels))}
            hidden = any(part.startswith(".") for part in parts)
            if owners <= {kernel} and not hidden and results.inside(chosen, path):
                found[f"reports/{'/'.join(parts)}"] = path
    return {name: path for name, path in found.items() if path.is_file()}


def _owner(part: str, kernels: Sequence[str]) -> str | None:
    """The kernel that a file or folder is named after: ``softmax.svg``, ``softmax-float32.svg``."""
    owners = [name for name in kernels if re.match(rf"{re.escape(name)}([.-]|$)", part)]
    return max(owners, key=len, default=None)
