"""Bring results of the format before this one into today's: what the rows of a run share goes into one line.

    python -m pipeline.migrate
    python -m pipeline.migrate input=outputs
    python -m pipeline.migrate input=path/to/results

Every row is kept, with its time and all its samples. The rows are of version 0 of the measuring code, from
before it had versions, so that a sweep measures their points again; until then they stand there as old. Keys
follow in finals, rounds, comparisons, profiles, counters, generated code and records of sweeps. What is of
today's format already stays, so that a migration that was stopped goes on by the same command.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import kernels
from kernels.contract import Provider
from pipeline import UserError
from pipeline.command.options import MigrateConfig
from pipeline.command.run import run_stage, say, warn
from pipeline.execution.identity import settings_beside
from pipeline.points.frozen import Record, digest
from pipeline.points.limits import SAMPLE_DIGITS, TIME_DIGITS, rounded
from pipeline.store import commit, files, provenance, results, runs
from pipeline.store.environment import Environment
from pipeline.store.evidence import CodeRow, CounterRow, ProfileRow
from pipeline.store.files import locked, write_atomically
from pipeline.store.finals import Final
from pipeline.store.provenance import OutsideKernel, RunProvenance, keyed
from pipeline.store.record import OLD_MEASUREMENT, Measurement, Origin, Parts
from pipeline.store.rows import Worked, encode, is_earlier
from pipeline.store.runs import Heading
from pipeline.store.sanitizer import SanitizerRow
from pipeline.store.turns import Turn
from pipeline.timing.settings import TimingSettings

Raw = dict[str, Any]

UNKNOWN = "unknown"
"""The run of rows from before rows named one: each of their commits is a run."""

STARTS = {
    "all": ("CUDA_", "NVIDIA_TF32_OVERRIDE", "CUBLAS", "CUDNN_", "PYTORCH_", "TORCH_"),
    "triton": ("TRITON_", "PTXAS_", "LLVM_"),
    "inductor": ("TORCHINDUCTOR_", "TORCHDYNAMO_", "INDUCTOR_"),
}
"""The variables that were in the keys of that format, by how they begin and whose keys had them."""

EVIDENCE: Mapping[str, type[Record]] = {
    "profile": ProfileRow,
    "counters": CounterRow,
    "codegen": CodeRow,
    "sanitizer": SanitizerRow,
}

ROUNDS = ("finals/*/rounds/*.jsonl", "comparisons/*/*/*.jsonl")


def run(config: MigrateConfig) -> None:
    """Rewrite all that a folder holds, and say how much that was."""
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results.")
    migration = Migration(config.input)
    migration.all()
    count = migration.count
    if not count["rows"]:
        say(f"{config.input} has no rows of an earlier format.")
        return
    say(
        f"{count['rows']} rows of {count['runs']} runs migrated; {count['environments']} of the runs' "
        f"environments are known. {count['keys']} keys followed in other files."
    )


class Migration:
    """The migration of one folder. Its ledgers are rewritten last: they tell what the keys were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count: Counter[str] = Counter()
        self.keys: dict[str, str] = {}
        self.rows: dict[Path, list[Measurement | Final | bytes]] = {}
        self._seen: defaultdict[tuple[str, str], list[Measurement | Final]] = defaultdict(list)

    def all(self) -> None:
        """Read what is of the earlier format, write what its runs share, and then all that names them."""
        for kind, pattern in ((Measurement, "timings/*/*.jsonl"), (Final, "finals/*/*.jsonl")):
            for path in sorted(self.folder.glob(pattern)):
                self._read(path, kind)
        self._provenance()
        for pattern in ROUNDS:
            for path in sorted(self.folder.glob(pattern)):
                self._rewrite(path, Turn)
        for name, model in EVIDENCE.items():
            for path in sorted(self.folder.glob(f"{name}/*/*.jsonl")):
                self._rewrite(path, model)
        for path in sorted(self.folder.glob("runs/*.jsonl")):
            self._record(path)
        for path in sorted(self.folder.glob("ceilings/*.json")):
            self._ceilings(path)
        for path, rows in sorted(self.rows.items(), reverse=True):  # finals before the ledgers
            lines = (row if isinstance(row, bytes) else encode(row) for row in rows)
            with locked(path):
                write_atomically(path, b"".join(lines))

    @staticmethod
    def _ceilings(path: Path) -> None:
        """Take out the overhead that was subtracted; a GPU's ceilings are measured again for its canary."""
        found = json.loads(path.read_bytes())
        if found.pop("overhead", None) is not None:
            write_atomically(path, json.dumps(found, indent=2).encode() + b"\n")

    def _read(self, path: Path, kind: type[Measurement] | type[Final]) -> None:
        found: list[Measurement | Final | bytes] = []
        is_of = False
        for line, raw in _lines(path):
            made = None if raw is None or not is_earlier(raw) else self._made(raw, kind, path)
            is_of = is_of or made is not None
            found.append(line if made is None else made)
            if made is not None:
                self._seen[made.origin.gpu, made.origin.run].append(made)
        if is_of:
            self.rows[path] = found

    def _made(
        self, raw: Raw, kind: type[Measurement] | type[Final], path: Path
    ) -> Measurement | Final | None:
        """A row of the earlier format as one of today's; None, with a sentence, for one that is neither."""
        try:
            if digest(raw["parts"]) != raw["key"]:
                raise ValueError("the key is not that of the parts")
            made = today(raw, kind)
        except (ValueError, KeyError, TypeError) as error:
            why = str(error).splitlines()[0]
            warn(f"{path}: a row is of neither format and stays as it is: {why}.")
            return None
        self.keys[raw["key"]] = made.key
        self.count["rows"] += 1
        return made

    def _provenance(self) -> None:
        settings = known_settings(self.folder)
        environments = {gpu: known_environments(self.folder, gpu) for gpu, _ in self._seen}
        found: defaultdict[str, dict[str, RunProvenance]] = defaultdict(dict)
        for (gpu, name), rows in self._seen.items():
            found[gpu][name] = run_of_rows(rows, environments[gpu], settings)
            self.count["runs"] += 1
            self.count["environments"] += found[gpu][name].environment is not None
        for gpu, some in found.items():
            path = self.folder / provenance.FOLDER / f"{gpu}.jsonl"
            with locked(path):
                both = provenance.merged(provenance.read(path), some)
                write_atomically(path, b"".join(both[name].line() for name in sorted(both)))

    def _rewrite(self, path: Path, model: type[Record]) -> None:
        """Let a file's rows name the keys of today, in the form that they have today."""
        lines = []
        for line, raw in _lines(path):
            if raw is not None and raw.get("key") in self.keys:
                raw["key"] = self.keys[raw["key"]]
                self.count["keys"] += 1
            try:
                lines.append(line if raw is None else model.model_validate(_shorter(raw)).line())
            except ValidationError:
                lines.append(line)
        with locked(path):
            write_atomically(path, b"".join(lines))

    def _record(self, path: Path) -> None:
        """The record of an ad-hoc sweep, whose first line says in what environment it was."""
        (_, first), *others = _lines(path)
        raws = [raw for _, raw in others if raw is not None and is_earlier(raw)]
        rows = [row for raw in raws if (row := self._made(raw, Measurement, path)) is not None]
        if first is None or not rows:
            return
        try:
            heading = Heading.model_validate(first)
        except ValidationError:
            warn(f"{path} does not begin as the record of a sweep does; it stays as it is.")
            return
        shared = run_of_rows(rows, [], known_settings(self.folder))
        shared = shared.model_copy(update={"environment": keyed(heading.environment)})
        heading = heading.model_copy(update={"provenance": shared})
        measured = [row for row in rows if isinstance(row, Measurement)]
        write_atomically(path, runs.encoded(heading, measured))
        self.count["runs"] += 1
        self.count["environments"] += 1


def today(raw: Raw, kind: type[Measurement] | type[Final]) -> Measurement | Final:
    """A row of the earlier format as one of today's. Raises ValueError, KeyError or TypeError for one that is
    none."""
    raw = _shorter(raw)
    parts = {name: raw["parts"][name] for name in Parts.model_fields if name != "measurement"}
    made = Parts(**parts, measurement=OLD_MEASUREMENT)
    told = {name: value for name, value in raw["origin"].items() if name in Origin.model_fields}
    told.pop("carried", None)
    if told["run"] == UNKNOWN:
        told["run"] = f"{UNKNOWN}-{told['commit'][:10]}"
    row = {**raw, "parts": made, "key": made.key, "origin": Origin.model_validate(told)}
    if (rate := raw["rate"]) is not None:
        time_us = rounded(
            (raw["outcome"]["timing"] if kind is Measurement else raw)["median_us"], TIME_DIGITS
        )
        worked = {name: rate[name] for name in Worked.model_fields}
        row["rate"] = Worked.model_validate(worked).over(time_us)
    return kind.model_validate(row)


def _shorter(raw: Raw) -> Raw:
    """A row with its samples to the digits that the clock gives."""
    outcome = raw.get("outcome") or {}
    for part in filter(None, (outcome.get("timing"), raw.get("sustained"))):
        part["samples_us"] = [rounded(one, SAMPLE_DIGITS) for one in part["samples_us"]]
        if part.get("overhead_us") is not None:
            part["overhead_us"] = rounded(part["overhead_us"], SAMPLE_DIGITS)
    return raw


def _lines(path: Path) -> Iterator[tuple[bytes, Raw | None]]:
    """The lines of a file, each with the JSON object that it is; None for one that is none."""
    for line in files.content(path).splitlines(keepends=True):
        try:
            raw = json.loads(line)
        except ValueError:
            raw = None
        if line.strip():
            yield line, raw if isinstance(raw, dict) else None


def run_of_rows(
    rows: Iterable[Measurement | Final],
    environments: Iterable[Environment],
    settings: Mapping[str, tuple[TimingSettings, int]],
) -> RunProvenance:
    """What rows of one run share, with the environment whose digests theirs are and the settings, where these
    are known."""
    rows = list(rows)
    first = rows[0]
    shared = provenance.run_of(first.origin, first.parts, first.point.kernel)
    outside: dict[str, OutsideKernel] = {}
    for row in rows:
        outside |= provenance.run_of(row.origin, row.parts, row.point.kernel).outside
    timing, seed = settings.get(first.parts.settings, (None, None))
    return shared.model_copy(
        update={
            "devices": dict.fromkeys(sorted({row.origin.device for row in rows})),
            "dirty": any(row.origin.dirty for row in rows),
            "outside": outside,
            "environment": next((keyed(one) for one in environments if is_of(one, rows)), None),
            "timing": None if timing is None else timing.model_dump(),
            "seed": seed,
        }
    )


def known_settings(folder: Path) -> dict[str, tuple[TimingSettings, int]]:
    """The settings and seeds that the files beside ledgers tell, and the usual ones, by their digests."""
    told = [settings_beside(path) for path in sorted(folder.glob("timings/*/*.jsonl"))]
    every = [(TimingSettings(), 0), *(one for one in told if one is not None)]
    return {digest([timing.model_dump(), seed]): (timing, seed) for timing, seed in every}


def known_environments(folder: Path, gpu: str) -> list[Environment]:
    """The environments that a machine had, as the folder tells it now and by its history in git."""
    path = results.environment_path(folder, gpu)
    found = []
    for text in (files.content(path).decode(), *commit.versions(path)):
        try:
            found.append(Environment.model_validate_json(text))
        except ValidationError:
            continue
    return list({one.model_dump_json(): one for one in found}.values())


def is_of(environment: Environment, rows: Iterable[Measurement | Final]) -> bool:
    """Whether rows were measured in an environment, by the digests in their keys. What a peer's or Numba's
    packages were there is not known here."""
    found = {(row.point, row.parts.environment) for row in rows}
    pairs = {(point.kernel, point.provider, seen) for point, seen in found}
    known = [(one, seen) for *of, seen in pairs if (one := _provider(*of)) is not None]
    return bool(known) and all(then(environment, provider) == seen for provider, seen in known)


def _provider(kernel: str, name: str) -> Provider | None:
    try:
        provider = kernels.load(kernel).kernel.provider(name)
    except (KeyError, FileNotFoundError):
        return None
    return None if provider.package or provider.language == "numba" else provider


def then(environment: Environment, provider: Provider) -> str:
    """The digest that a key of the earlier format had for an environment."""
    starts = STARTS["all"]
    if provider.language in ("triton", "gluon") or provider.compiled:
        starts += STARTS["triton"]
    if provider.compiled:
        starts += STARTS["inductor"]
    flags = {name: value for name, value in environment.flags.items() if name.startswith(starts)}
    return digest(environment.keyed_for(provider) | {"flags": flags})


if __name__ == "__main__":
    run_stage("migrate", MigrateConfig, run)
