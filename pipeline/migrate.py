"""Bring results of the first format, one flat row a point, into today's. Nothing else reads the first.

    python -m pipeline.migrate
    python -m pipeline.migrate input=results
    python -m pipeline.migrate input=path/to/results

Every timed row is kept with its samples. What its source, measuring code and environment were in today's
terms is
not known, so that a sweep measures its point again; until then the row stands in the ledger as old. Refusals
are no points any more and go.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

import kernels
from pipeline import UserError
from pipeline.command.options import MigrateConfig
from pipeline.command.run import run_stage, say
from pipeline.points import catalog, problems
from pipeline.points.frozen import Record, Values, digest
from pipeline.points.point import Point
from pipeline.store.evidence import CodeRow, CounterRow, Mix, ProfileRow, write_lines
from pipeline.store.files import write_atomically
from pipeline.store.ledger import encode
from pipeline.store.record import Measurement, Origin, Outcome, Parts, Rate, State, Timing
from pipeline.timing.settings import TimingSettings

UNKNOWN = "unknown"
"""The run and the command of rows from before rows named them."""

REFUSED = "unsupported"
"""A status of the first format: such configurations are no points today."""

Keys = dict[str, str]
"""Today's key by the first format's."""


def run(config: MigrateConfig) -> None:
    """Rewrite each ledger and what belongs to it, and say what must be measured again."""
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results.")
    keys: Keys = {}
    total: Counter[str] = Counter()
    ledgers = sorted((config.input / "timings").glob("*/*.jsonl"))
    for path in ledgers:
        _settings(path)  # what is missing is said before anything is rewritten
    for path in ledgers:
        total += ledger(path, keys)
    for name, kind in (("profile", ProfileRow), ("counters", CounterRow), ("codegen", CodeRow)):
        for path in sorted((config.input / name).glob("*/*.jsonl")):
            total += evidence(path, kind, keys)
    say(
        f"{total['kept']} rows migrated; {total['dropped']} refusals and rows of kernels that are gone "
        f"dropped; {total['today']} were of today's format. {total['timed']} timed points must be measured "
        "again: `dvc repro` measures those of its preset."
    )


def ledger(path: Path, keys: Keys) -> Counter[str]:
    """Rewrite one ledger; how many rows were kept, dropped, or of today's format already."""
    count: Counter[str] = Counter()
    lines = []
    settings = _settings(path)
    for number, row in _rows(path):
        if "point" in row:
            count["today"] += 1
            lines.append(json.dumps(row, separators=(",", ":")).encode() + b"\n")
            continue
        point = _point(row)
        if row.get("status") == REFUSED or point is None:
            count["dropped"] += 1
            continue
        try:
            made = _measurement(row, point, settings)
        except (ValidationError, KeyError) as error:
            raise UserError(f"{path}:{number} is of neither format: {error}.") from error
        keys[str(row["key"])] = made.key
        count["kept"] += 1
        count["timed"] += made.outcome.timing is not None
        lines.append(encode(made))
    write_atomically(path, b"".join(lines))
    return count


def evidence(path: Path, kind: type[Record], keys: Keys) -> Counter[str]:
    """Rewrite one file of evidence; how many rows were kept."""
    count: Counter[str] = Counter()
    rows = []
    for _, row in _rows(path):
        if "point" in row:
            count["today"] += 1
            rows.append(kind.model_validate(row))
            continue
        point = _point(row) if row.get("provider") else None
        if row.get("provider") and point is None:
            count["dropped"] += 1
            continue
        known = {name: row[name] for name in kind.model_fields if name in row and name not in ("key", "mix")}
        if kind is CodeRow:
            mix = {name: row.get(name) for name in Mix.model_fields}
            known["mix"] = mix if any(value is not None for value in mix.values()) else None
        key = keys.get(str(row["key"])) if row.get("key") else None
        rows.append(kind.model_validate({**known, "key": key, "point": point if key else None}))
        count["kept"] += 1
    write_lines(path, rows)
    return count


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file that are JSON objects, with their line numbers."""
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield number, row


def _settings(path: Path) -> str:
    """The digest of the settings that a ledger was measured with, which lie beside it."""
    beside = path.with_suffix(".yaml")
    try:
        told = yaml.safe_load(beside.read_text())
        timing = TimingSettings.model_validate(told["timing"])
        return digest([timing.model_dump(), told["seed"]])
    except (OSError, KeyError, TypeError, ValidationError) as error:
        raise UserError(f"{beside} must tell the timing and the seed of {path}: {error}.") from error


def _point(row: Mapping[str, Any]) -> Point | None:
    """The point of a row; None for a kernel or provider that is gone."""
    try:
        loaded = kernels.load(str(row["kernel"]))
        provider = loaded.kernel.provider(str(row["provider"]))
    except KeyError:
        return None
    dimensions = loaded.kernel.dimensions()
    named = dict.fromkeys(loaded.kernel.size, row["size"])
    named |= {name: row[name] for name in dimensions if row.get(name) is not None}
    parameters = {name: row[name] for name in provider.variables() if row.get(name) is not None}
    problem = problems.make(loaded.kernel.problem, named)
    return Point(
        kernel=loaded.name,
        provider=provider.name,
        problem=problems.identity_of(problem),
        parameters=Values(parameters),
    )


def _measurement(row: Mapping[str, Any], point: Point, settings: str) -> Measurement:
    def part(kind: type[Record]) -> dict[str, Any] | None:
        found = {name: row.get(name) for name in kind.model_fields}
        return found if any(value is not None for value in found.values()) else None

    parts = Parts(
        point=digest(point.model_dump()), source="", measurement="0", environment="", settings=settings
    )
    outcome = {name: row[name] for name in ("status", "error", "max_abs_err", "max_rel_err")}
    state = part(State)
    told = {name: row.get(name) for name in Origin.model_fields if name in row}
    return Measurement(
        key=parts.key,
        point=point,
        workload=_workloads(point.kernel).get(point.problem, next(iter(_workloads(point.kernel).values()))),
        outcome=Outcome.model_validate({**outcome, "timing": part(Timing), "state": state}),
        rate=None if part(Timing) is None else Rate.model_validate(part(Rate)),
        parts=parts,
        origin=Origin.model_validate({**told, "run": UNKNOWN, "command": UNKNOWN}),
    )


@cache
def _workloads(kernel: str) -> dict[Values, str]:
    """The workload that each problem of the kernel's YAML belongs to, the largest of several."""
    entry = catalog.find(kernel)
    of_workload = {
        name: [problems.identity_of(problem) for problem in problems.of_workload(entry, workload, {})]
        for name, workload in entry.config.workloads.items()
    }
    found: dict[Values, str] = {}
    for name in sorted(of_workload, key=lambda name: -len(of_workload[name])):
        for problem in of_workload[name]:
            found.setdefault(problem, name)
    return found


if __name__ == "__main__":
    run_stage("migrate", MigrateConfig, run)
