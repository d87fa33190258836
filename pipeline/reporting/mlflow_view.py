"""What MLflow shows of results and of ad-hoc sweeps, as ``mlflow_publish.py`` writes it.

An experiment a kernel; in it a parent run for each GPU (``softmax @ nvidia-h200``), and below it a child run
for each configuration on each line of problems (``lines.py``), and one for the best of each provider. A line
runs along its workload's x axis, whose values are the steps of the metrics, so that the UI draws rates
against it; dimensions that stay the same are the run's params. Each ad-hoc sweep has a parent and children of
its own, under the id of its run. All of it can be made again from the files.
"""

from __future__ import annotations

import itertools
import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from pipeline import ROOT, UserError
from pipeline.points.frozen import Values, digest
from pipeline.reporting import lines, mlflow_runs, shares
from pipeline.reporting import mlflow_metrics as metrics
from pipeline.reporting import mlflow_notes as notes
from pipeline.reporting.comparison import from_kept
from pipeline.reporting.comparison import table as comparison_table
from pipeline.reporting.lines import PlacedMeasurement, ProblemLine
from pipeline.reporting.mlflow_content import LedgerRuns, Run, Value
from pipeline.reporting.mlflow_files import files
from pipeline.reporting.mlflow_runs import AD_HOC, BEST, SWEEP
from pipeline.store import evidence, finals, results
from pipeline.store.ceilings import Ceilings
from pipeline.store.comparisons import Comparison
from pipeline.store.environment import Environment
from pipeline.store.evidence import Evidence
from pipeline.store.finals import Final
from pipeline.store.record import Measurement
from pipeline.store.results import Results
from pipeline.store.runs import Heading, is_ad_hoc
from pipeline.verdicts.intervals import Verdict

MOST_NOTED = 20
"""Rows of a comparison in its description, which a tag has to take; the others are in its files."""

MEASURED_AT = re.compile(rb'"measured_at":"([^"]+)"')

PAUSE_MS = 300_000
"""A gap between two rows that is longer was no measuring."""


def read(
    input: Path,
    kernel: str | None = None,
    reports: Path | None = None,
    artifacts: Path | None = None,
    gpu: str | None = None,
) -> Iterator[LedgerRuns]:
    """What MLflow is to show of the ledgers below ``input``, or of one kernel's or one machine's: one after
    the other, so that a single ledger's rows are in memory at a time, the one with the newest row first.

    Raises UserError for an input that is not there.
    """
    return _read(ledgers(input), kernel, input, reports, artifacts, gpu)


def ledgers(input: Path) -> dict[tuple[str, str], list[Path]]:
    """The files of every kernel's ledger on each machine below ``input`` that has any row, in the order of
    their names. Raises UserError for an input that is not there."""
    if not any(folder.is_dir() for folder in results.folders_of(input)):
        raise UserError(f"input={input} is not there; `dvc repro` makes results, input=FOLDER names others.")
    found: dict[tuple[str, str], list[Path]] = {}
    for path in results.ledgers(input, warn):
        if path.stat().st_size:
            found.setdefault((path.parent.name, path.stem), []).append(path)
    return dict(sorted(found.items()))


def _newest(paths: Sequence[Path]) -> bytes:
    """When the newest row of a ledger was measured, as text that sorts; it is not parsed for that."""
    return max((at for path in paths for at in MEASURED_AT.findall(path.read_bytes())), default=b"")


def _read(
    every: Mapping[tuple[str, str], list[Path]],
    kernel: str | None,
    input: Path,
    reports: Path | None,
    artifacts: Path | None,
    gpu: str | None,
) -> Iterator[LedgerRuns]:
    known = Results((), *results.machines(input, warn))
    found = evidence.load(input, warn)
    held = {
        place: shares.with_shares(finals.newest(rows), known.ceilings)
        for place, rows in finals.load(input, warn).items()
    }
    kernels = sorted({name for name, _ in every})
    wanted = [one for one in every if kernel in (None, one[0]) and gpu in (None, one[1])]
    for name, slug in sorted(wanted, key=lambda one: _newest(every[one]), reverse=True):
        paths = every[name, slug]
        if rows := [row for path in paths for row in results.own_rows(path, warn)]:
            yield sweep(
                shares.with_shares(rows, known.ceilings),
                known,
                found,
                files(name, slug, kernels, input, reports, artifacts),
                input,
                held.get((name, slug), ()),
                {gpu: some for (kernel, gpu), some in held.items() if kernel == name and gpu != slug},
            )


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
    elsewhere: Mapping[str, Sequence[Final]] = MappingProxyType({}),
) -> LedgerRuns:
    """What MLflow shows of one ledger below ``input``, and of its points that had finals; ``elsewhere`` are
    the kernel's finals on other machines, by their slugs."""
    kernel, gpu = rows[0].point.kernel, rows[0].origin.gpu
    environment = loaded.environments.get(gpu)
    placed = lines.place(rows)
    parent, children = _family(
        placed,
        identity=f"{kernel}/{gpu}{_whose(input, environment)}",
        kind=SWEEP,
        environment=environment,
        ceilings=loaded.ceilings.get(gpu),
        reasons=metrics.with_finals(metrics.explained(found, kernel, gpu), held),
    )
    note = notes.of_results(placed, artifacts)
    parent = parent.with_tags({notes.NOTE: note})
    if not gpu.startswith("cpu-"):
        gpus = {slug: some for slug, some in elsewhere.items() if not slug.startswith("cpu-")}
        parent = parent.with_values(metrics.beside_gpus(held, gpus, parent.ended_ms))
    return LedgerRuns(len(rows), parent, children, f"tags.gpu = '{gpu}'", artifacts)


def ad_hoc(heading: Heading, rows: Sequence[Measurement], record: Path) -> LedgerRuns:
    """What MLflow shows of what one ad-hoc sweep measured."""
    placed = lines.place(rows)
    changed = ", ".join(f"{count} {what}" for what, count in heading.changed.items())
    parent, children = _family(
        placed,
        identity=ad_hoc_identity(heading),
        kind=AD_HOC,
        environment=heading.environment,
        ceilings=heading.ceilings,
        tags={"changed": changed},
        suffix=f", {heading.run}",
    )
    parent = parent.with_tags({notes.NOTE: notes.of_sweep(placed, changed)})
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
            notes.NOTE: f"**{name}**\n\n{comparison_table(noted, name).markdown()}",
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
    """A parent run for some measurements of one kernel on one machine, and child runs for each of their
    configurations on a line and, of a ledger, for the best of each provider. ``reasons`` are the metrics that
    explain a measurement, by its key; the names end with ``suffix``."""
    took = _took(placed)
    groups: dict[tuple[str, Values, ProblemLine, str], list[PlacedMeasurement]] = {}
    for one in placed:
        key = (one.point.provider, one.point.parameters, one.line, one.cache)
        groups.setdefault(key, []).append(one)
    children = [
        mlflow_runs.configuration(group, identity, reasons, suffix, took) for group in groups.values()
    ]
    if kind == SWEEP:
        children += [mlflow_runs.best(group, identity, took) for group in metrics.bests(placed).values()]
    # In which they are written: a kernel's first page shows the best ones.
    children.sort(key=lambda run: (run.tags["kind"] != BEST, -run.ended_ms))
    parent = mlflow_runs.run(
        placed,
        identity=identity,
        name=placed[0].point.kernel,
        params=mlflow_runs.machine(environment, ceilings),
        values=metrics.summary(placed),
        tags={**tags, "kind": kind, "environment": environment.digest if environment else ""},
        suffix=suffix,
        took_ms=_without_pauses(placed),
    )
    return parent, tuple(children)


def _took(placed: Sequence[PlacedMeasurement]) -> dict[int, int]:
    """Milliseconds that each measurement took, by its id: since the row before it of the same device, for a
    device measures one point after the other. None are known of the first."""
    found: dict[int, int] = {}
    devices: dict[str, list[PlacedMeasurement]] = {}
    for one in sorted(placed, key=lambda one: one.at_ms):
        devices.setdefault(one.row.origin.device, []).append(one)
    for rows in devices.values():
        found |= {id(rows[0]): 0}
        found |= {id(row): _pauseless(row.at_ms - last.at_ms) for last, row in itertools.pairwise(rows)}
    return found


def _without_pauses(placed: Sequence[PlacedMeasurement]) -> int:
    """Milliseconds that measuring went on, on whatever device."""
    times = sorted(one.at_ms for one in placed)
    return sum(_pauseless(late - early) for early, late in itertools.pairwise(times))


def _pauseless(gap_ms: int) -> int:
    return gap_ms if gap_ms <= PAUSE_MS else 0
