"""Remove rows that are old from ledgers, when told to; else say which are old, and by what.

    python -m pipeline.prune kernel=softmax
    python -m pipeline.prune kernel=softmax input=outputs
    python -m pipeline.prune kernel=all parts=[point,source] remove=true

A row is old by a part of its key that is not what it would be now: the kernel has no such point any more, its
provider runs another source, another version of the measuring code times and verifies, or the machine has
another environment. No other command removes a row for being old. With rows go the lines of runs that no row
names any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import get_args

import kernels
from pipeline import UserError
from pipeline.command.options import PruneConfig
from pipeline.command.run import run_stage, say, warn
from pipeline.execution import changes, identity, versions
from pipeline.execution.changes import OldRows
from pipeline.points import catalog, problems
from pipeline.points.frozen import digest
from pipeline.store import provenance, results
from pipeline.store.environment import Environment
from pipeline.store.ledger import Ledger
from pipeline.store.provenance import RunProvenance
from pipeline.store.record import Measurement
from pipeline.timing.settings import TimingSettings

ALL = "all"


def run(config: PruneConfig) -> None:
    """Say what is old, and remove it when told to."""
    if not config.input.is_dir():
        raise UserError(f"input={config.input} is not a folder with results.")
    name = config.kernel if config.kernel == ALL else catalog.find(config.kernel).name
    folders = results.folders_of(config.input)
    found = [path for folder in folders for path in sorted((folder / "timings").glob("*/*.jsonl"))]
    paths = [path for path in found if name in (ALL, path.parent.name)]
    if not paths:
        raise UserError(f"{' and '.join(map(str, folders))}: no ledger of kernel={config.kernel} is there.")
    total = 0
    for path in paths:
        if config.kernel == ALL and path.parent.name not in kernels.names():
            say(f"{path} is left alone: no kernel here has its name. Write kernel=FOLDER/{path.parent.name}.")
            continue
        where = path.parent.name if config.kernel == ALL else config.kernel
        total += prune(path, Today(path, catalog.find(where).loaded), config)
    if config.remove:
        dropped = sum(prune_runs(folder) for folder in folders)
        say(f"{total} rows removed, and the lines of {dropped} runs that no row names.")
    else:
        say(f"{total} rows are old. Write remove=true to remove them." if total else "No row is old.")


def prune(path: Path, today: Today, config: PruneConfig) -> int:
    """Say which rows of a ledger are old, and remove them when told to; how many they are."""
    ledger = Ledger(path, warn)
    count = len(ledger)
    reasons: defaultdict[str, OldRows] = defaultdict(OldRows)
    runs = provenance.read(provenance.beside(path))

    def current(row: Measurement) -> Measurement | None:
        old = [part for part in today.changed(row) if part in config.parts]
        if not old:
            return row
        reasons[row.point.provider].add(today.told(row, old, runs.get(row.origin.run)))
        return None

    left = [current(row) for row in ledger.rows()]
    if config.remove and None in left:
        reasons.clear()
        ledger.compact(current)  # of the rows as they are by then
    total = sum(old.count for old in reasons.values())
    if total:
        say(f"{path}: {total} of {count} rows {'were' if config.remove else 'are'} old")
        for provider, old in sorted(reasons.items()):
            say(f"  {provider}: {old.said()}")
    return total


def prune_runs(folder: Path) -> int:
    """Drop the lines of runs that no row names any more; how many."""

    def named(gpu: str) -> set[str]:
        paths = (one for kind in provenance.IN_RESULTS for one in folder.glob(f"{kind}/*/{gpu}.jsonl"))
        return {run for path in paths for run in provenance.named_in(path)}

    return sum(
        provenance.prune(path, partial(named, path.stem))
        for path in sorted((folder / provenance.FOLDER).glob("*.jsonl"))
    )


class Today:
    """What the rows of one ledger would be known by now.

    The environment is the one that its machine had last, and the settings those of the sweep that last wrote
    the ledger, as the files beside it tell; what they don't tell makes no row old.
    """

    def __init__(self, path: Path, loaded: kernels.Loaded) -> None:
        self.path = path
        self.loaded = loaded
        self.kind = "cpu" if path.stem.startswith("cpu-") else "cuda"
        self._sources: dict[str, str] = {}

    def told(self, row: Measurement, old: Sequence[str], run: RunProvenance | None) -> list[str]:
        """Why a row is old by some parts."""
        if "point" in old:
            return [changes.without_point(row)]
        provider = self.loaded.kernel.provider(row.point.provider)
        timer = TimingSettings().timer if self.settings is None else self.settings[0].timer
        today = dict.fromkeys(old, "another")
        if "measurement" in old:
            today["measurement"] = versions.measurement(self.kind, timer)
        settings = {} if self.settings is None else changes.with_seed(*self.settings)
        now = row.parts.model_copy(update=today)
        return changes.of_parts(row, now, run, provider, self.environment, settings)

    def changed(self, row: Measurement) -> list[str]:
        """The parts by which a row is old."""
        if not problems.declares(self.loaded.kernel, row.point):
            return ["point"]
        provider = self.loaded.kernel.provider(row.point.provider)
        if provider.name not in self._sources:
            self._sources[provider.name] = identity.source(self.loaded, provider).digest
        now: dict[str, set[str]] = {
            "source": {self._sources[provider.name]},
            "measurement": self.measurements(row.parts.settings),
        }
        # Which version of a peer's package that machine has, no file tells.
        if self.environment is not None and not provider.package:
            now["environment"] = {digest(self.environment.keyed_for(provider))}
        if self.settings is not None:
            now["settings"] = {settings_digest(*self.settings)}
        return [part for part, those in now.items() if getattr(row.parts, part) not in those]

    def measurements(self, settings: str) -> set[str]:
        """The versions of the measuring code that may have measured by these settings: one, or where it is
        not known which timer they name, that of each."""
        timers: Sequence[str] = get_args(TimingSettings.model_fields["timer"].annotation)
        if self.settings is not None and settings == settings_digest(*self.settings):
            timers = [self.settings[0].timer]
        return {versions.measurement(self.kind, timer) for timer in timers}

    @cached_property
    def environment(self) -> Environment | None:
        """The machine's, as its last sweep or ``pipeline.environment`` found it."""
        path = results.environment_path(self.path.parents[2], self.path.stem)
        return results.read(Environment, path) if path.exists() else None

    @cached_property
    def settings(self) -> tuple[TimingSettings, int] | None:
        """The timing's settings and the seed of the sweep that last wrote the ledger."""
        return identity.settings_beside(self.path)


def settings_digest(timing: TimingSettings, seed: int) -> str:
    """As ``parts.settings`` of a row."""
    return digest([timing.model_dump(), seed])


if __name__ == "__main__":
    run_stage("prune", PruneConfig, run)
