"""Remove rows that are old from ledgers, when told to; else say which are old, and by what.

    python -m pipeline.prune kernel=softmax
    python -m pipeline.prune kernel=softmax input=outputs
    python -m pipeline.prune kernel=all parts=[point,source] remove=true

A row is old by a part of its key that is not what it would be now: the kernel has no such point any more, its
provider runs another source, another instrument times and verifies, or the machine has another environment.
No other command removes a row for being old.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import get_args

import kernels
from pipeline import UserError
from pipeline.command.options import PruneConfig
from pipeline.command.run import run_stage, say, warn
from pipeline.execution import identity
from pipeline.points import catalog, problems
from pipeline.points.frozen import digest
from pipeline.store import plain_yaml, results
from pipeline.store.environment import Environment
from pipeline.store.ledger import Ledger
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
        say(f"{total} rows removed.")
    else:
        say(f"{total} rows are old. Write remove=true to remove them." if total else "No row is old.")


def prune(path: Path, today: Today, config: PruneConfig) -> int:
    """Say which rows of a ledger are old, and remove them when told to; how many they are."""
    ledger = Ledger(path, warn)
    count = len(ledger)
    reasons: Counter[tuple[str, str]] = Counter()

    def current(row: Measurement) -> Measurement | None:
        old = [part for part in today.changed(row) if part in config.parts]
        if not old:
            return row
        reasons[row.point.provider, ", ".join(old)] += 1
        return None

    left = [current(row) for row in ledger.rows()]
    if config.remove and None in left:
        reasons.clear()
        ledger.compact(current)  # of the rows as they are by then
    if reasons:
        say(f"{path}: {reasons.total()} of {count} rows {'were' if config.remove else 'are'} old")
        for (provider, old), number in sorted(reasons.items()):
            say(f"  {provider}: {number} by {old}")
    return reasons.total()


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

    def changed(self, row: Measurement) -> list[str]:
        """The parts by which a row is old."""
        if not problems.declares(self.loaded.kernel, row.point):
            return ["point"]
        provider = self.loaded.kernel.provider(row.point.provider)
        if provider.name not in self._sources:
            self._sources[provider.name] = identity.source(self.loaded, provider)
        now: dict[str, set[str]] = {
            "source": {self._sources[provider.name]},
            "instrument": self.instruments(row.parts.settings),
        }
        # Which version of a peer's package that machine has, no file tells.
        if self.environment is not None and not provider.package:
            now["environment"] = {digest(self.environment.felt_by(provider))}
        if self.settings is not None:
            now["settings"] = {settings_digest(*self.settings)}
        return [part for part, those in now.items() if getattr(row.parts, part) not in those]

    def instruments(self, settings: str) -> set[str]:
        """The instruments that may have measured by these settings: one, or where it is not known which timer
        they name, that of each."""
        timers: Sequence[str] = get_args(TimingSettings.model_fields["timer"].annotation)
        if self.settings is not None and settings == settings_digest(*self.settings):
            timers = [self.settings[0].timer]
        return {identity.instrument(self.kind, timer) for timer in timers}

    @cached_property
    def environment(self) -> Environment | None:
        """The machine's, as its last sweep or ``pipeline.environment`` found it."""
        path = results.environment_path(self.path.parents[2], self.path.stem)
        return results.read(Environment, path) if path.exists() else None

    @cached_property
    def settings(self) -> tuple[TimingSettings, int] | None:
        """The timing's settings and the seed of the sweep that last wrote the ledger."""
        told = self.path.with_suffix(".yaml")
        return identity.settings_beside(self.path) if plain_yaml.is_plain(told) else None


def settings_digest(timing: TimingSettings, seed: int) -> str:
    """As ``parts.settings`` of a row."""
    return digest([timing.model_dump(), seed])


if __name__ == "__main__":
    run_stage("prune", PruneConfig, run)
