"""Turn ledgers, ad-hoc sweeps and comparisons into the MLflow runs that ``publisher`` writes.

Each kernel has an experiment with a parent run for each GPU (``softmax @ nvidia-h200``). Its child runs are
one for each configuration on each line of problems (``lines.py``), and one for the best of each provider. A
line runs along its workload's x axis. The values of x are the steps of the metrics, so the UI draws rates
against x; the fixed dimensions are the run's params. Each ad-hoc sweep has its own parent and children, under
the id of its run.
"""

from __future__ import annotations

import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values, digest
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.statistics.verdicts import Verdict

from ..reporting import lines
from ..reporting.comparison import from_kept
from ..reporting.comparison import table as comparison_table
from ..reporting.headlines import with_shares
from ..reporting.lines import PlacedMeasurement, ProblemLine
from ..store import evidence, finals, results
from ..store.comparisons import Comparison
from ..store.results import Results
from ..store.rows_that_count import own_rows
from ..store.runs import Heading
from . import metrics, mlflow_runs, notes
from .mlflow_runs import AD_HOC, BEST, SWEEP
from .run_families import NOTE, Run, RunFamily, Value

MOST_NOTED = 20
"""The maximum number of a comparison's rows in its description, which is a tag. Its files have all rows."""

SHOWN_ALREADY = {".ptx", ".sass", ".ttgir", ".llir"}
"""Suffixes of texts that are not uploaded, because the listing beside them shows the same code."""


def ledgers(input: Path) -> dict[tuple[str, str], list[Path]]:
    """Return the files of each non-empty ledger below ``input`` by (kernel, machine), sorted. Raises
    UserError if ``input`` is missing."""
    if not any(folder.is_dir() for folder in results.folders_of(input)):
        raise UserError(
            f"input={input} does not exist; `dvc repro` makes results, and input=FOLDER reads another folder."
        )
    found: dict[tuple[str, str], list[Path]] = {}
    for path in results.ledgers(input, warn):
        if path.stat().st_size:
            found.setdefault((path.parent.name, path.stem), []).append(path)
    return dict(sorted(found.items()))


def read(
    input: Path,
    kernel: str | None = None,
    reports: Path | None = None,
    artifacts: Path | None = None,
    gpu: str | None = None,
) -> Iterator[RunFamily]:
    """Yield the runs of the ledgers below ``input``; ``kernel`` and ``gpu`` select some of them. Holds the
    rows of one ledger in memory at a time. Raises UserError if ``input`` is missing.
    """
    every = ledgers(input)
    known = Results((), *results.machines(input, warn))
    found = evidence.load(input, warn)
    with_finals = {
        place: with_shares(finals.newest(rows), known.ceilings)
        for place, rows in finals.load(input, warn).items()
    }
    kernels = sorted({name for name, _ in every})
    for (name, slug), paths in every.items():
        if kernel not in (None, name) or gpu not in (None, slug):
            continue
        rows = [row for path in paths for row in own_rows(path, warn)]
        if not rows:
            continue
        held = with_finals.get((name, slug), ())
        environment = known.environments.get(slug)
        placed = lines.place(with_shares(rows, known.ceilings))
        files = artifact_files(name, slug, kernels, input, reports, artifacts)
        parent, children = _family(
            placed,
            identity=f"{name}/{slug}{_owner(input, environment)}",
            kind=SWEEP,
            environment=environment,
            ceilings=known.ceilings.get(slug),
            reasons=metrics.with_finals(metrics.explained(found, name, slug), held),
        )
        parent = parent.extended({NOTE: notes.of_results(placed, files)})
        yield RunFamily(len(rows), parent, children, f"tags.gpu = '{slug}'", files)


def ad_hoc(heading: Heading, rows: Sequence[Measurement], record: Path) -> RunFamily:
    """Return the runs of one ad-hoc sweep."""
    placed = lines.place(rows)
    changed = ", ".join(f"{count} {part}" for part, count in heading.changed.items())
    parent, children = _family(
        placed,
        identity=ad_hoc_identity(heading),
        kind=AD_HOC,
        environment=heading.environment,
        ceilings=heading.ceilings,
        tags={"changed": changed},
        suffix=f", {heading.run}",
    )
    parent = parent.extended({NOTE: notes.of_sweep(placed, changed)})
    files = {f"runs/{record.name}": record}
    return RunFamily(len(rows), parent, children, f"tags.run = '{heading.run}'", files, stays=True)


def comparison(found: Comparison, file: Path, links: Mapping[str, str]) -> RunFamily:
    """Return the run of a comparison. ``links`` maps a tag for each side to the id of the run that has the
    side's measurements."""
    name = f"{found.kernel}/{found.gpu}/{file.stem}"
    at = int(found.at.timestamp() * 1000)
    counts = Counter(row.verdict for row in found.rows)
    logs = [math.log(row.ratio) for row in found.rows]
    values = [Value(word, float(counts[word]), 0, at) for word in get_args(Verdict)]
    values += [Value("b_over_a", math.exp(math.fsum(logs) / len(logs)), 0, at)] if logs else []
    noted = [from_kept(row) for row in found.rows[:MOST_NOTED]]
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
            NOTE: f"**{name}**\n\n{comparison_table(noted, name).markdown()}",
            **links,
        },
        params={
            **{"kernel": found.kernel, "gpu": found.gpu, "a": found.a.name, "b": found.b.name},
            **{"commit_a": found.a.commit or "", "commit_b": found.b.commit or ""},
            "by": str(found.by),
        },
        values=tuple(values),
    )
    files = {f"comparison/{one.name}": one for one in sorted(file.parent.glob(f"{file.stem}.*"))}
    return RunFamily(len(found.rows), run, (), f"tags.comparison = '{name}'", files)


def warn(sentence: str) -> None:
    """Print a warning about a skipped file or line."""
    print(f"warning: {sentence}", file=sys.stderr)


def ad_hoc_identity(heading: Heading) -> str:
    """Return the identity of an ad-hoc sweep's parent run. It does not depend on the folder of the record."""
    return f"run/{heading.run}"


def _owner(input: Path, environment: Environment | None) -> str:
    """Return a suffix that distinguishes ledgers of the same kernel and machine: the host of a CPU, and any
    folder other than the repository's results."""
    host = environment.host if environment else None
    folder = input.resolve()
    words = [f"on {host}"] if host else []
    if results.is_ad_hoc(folder):
        words.append(f"of {folder.name} {digest([platform.node(), str(folder)])}")
    return "".join(f" {word}" for word in words)


def _family(
    placed: Sequence[PlacedMeasurement],
    *,
    identity: str,
    kind: str,
    environment: Environment | None,
    ceilings: Ceilings | None,
    reasons: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
    suffix: str = "",
) -> tuple[Run, tuple[Run, ...]]:
    """Return the parent run for measurements of one kernel on one machine, and its child runs: one for each
    configuration on a line and, if ``kind`` is SWEEP, one for the best of each provider.

    ``reasons`` maps a measurement's key to the metrics that explain it. ``suffix`` ends the runs' names."""
    groups: dict[tuple[str, Values, ProblemLine, str], list[PlacedMeasurement]] = {}
    for one in placed:
        key = (one.point.provider, one.point.parameters, one.line, one.cache)
        groups.setdefault(key, []).append(one)
    children = [mlflow_runs.configuration(group, identity, reasons, suffix) for group in groups.values()]
    if kind == SWEEP:
        children += [mlflow_runs.best(group, identity) for group in metrics.bests(placed).values()]
    # MLflow lists runs in the order of writing, so the best runs are on a kernel's first page.
    children.sort(key=lambda run: (run.tags["kind"] != BEST, -run.ended_ms))
    parent = mlflow_runs.run(
        placed,
        identity=identity,
        name=placed[0].point.kernel,
        params=mlflow_runs.machine(environment, ceilings),
        values=metrics.summary(placed),
        tags={**tags, "kind": kind, "environment": environment.digest if environment else ""},
        suffix=suffix,
    )
    return parent, tuple(children)


def artifact_files(
    kernel: str,
    gpu: str,
    kernels: Sequence[str],
    input: Path,
    reports: Path | None = None,
    artifacts: Path | None = None,
) -> dict[str, Path]:
    """Return the files of one ledger by their path among the parent run's artifacts.

    Report files named after another kernel are left out. A CPU's reports in ``local/`` replace the
    repository's. Links that lead out of a folder are skipped.
    """
    places = (
        results.ledger_path,
        results.config_path,
        results.build_path,
        results.codegen_path,
        results.profile_path,
        results.counters_path,
    )
    found: dict[str, Path] = {}
    for folder in results.folders_of(input):
        paths = [place(folder, kernel, gpu) for place in places]
        for path in (*paths, results.environment_path(folder, gpu), results.ceilings_path(folder, gpu)):
            if path.is_file() and results.inside(folder, path):
                found[f"results/{path.relative_to(folder)}"] = path
    if artifacts:
        for kind in ("profile", "counters", "codegen"):
            folder = artifacts / kind / kernel
            for path in sorted([*folder.glob(f"{gpu}.*"), *(folder / gpu).rglob("*")]):
                if path.suffix not in SHOWN_ALREADY and results.inside(artifacts, path):
                    found[f"artifacts/{kind}/{path.name}"] = path
    if reports:
        own = results.folder_for(reports, "cpu")
        chosen = own if own.is_dir() else reports
        for path in sorted(chosen.rglob("*")):
            parts = path.relative_to(chosen).parts
            named = {owner for part in parts if (owner := _kernel_named(part, kernels))}
            hidden = any(part.startswith(".") for part in parts)
            if named <= {kernel} and not hidden and results.inside(chosen, path):
                found[f"reports/{'/'.join(parts)}"] = path
    return {name: path for name, path in found.items() if path.is_file()}


def _kernel_named(part: str, kernels: Sequence[str]) -> str | None:
    """Return the kernel after which a file or folder is named: ``softmax.svg``, ``softmax-float32.svg``."""
    named = [name for name in kernels if re.match(rf"{re.escape(name)}([.-]|$)", part)]
    return max(named, key=len, default=None)
