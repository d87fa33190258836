"""Which rows of a ledger are old, and by which parts of their keys; and their removal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import get_args

import kernels
from pipeline.execution import changes, identity, versions
from pipeline.execution.changes import OldRows
from pipeline.points import problems
from pipeline.points.frozen import digest
from pipeline.store import provenance, results
from pipeline.store.environment import Environment
from pipeline.store.ledger import Ledger
from pipeline.store.provenance import RunProvenance
from pipeline.store.record import Measurement
from pipeline.timing.settings import TimingSettings

Say = Callable[[str], None]


def prune_ledger(today: Today, parts: Sequence[str], is_written: bool, say: Say, warn: Say) -> int:
    """Say which rows of a ledger are old by one of the parts, and with ``is_written`` remove them; how many
    they are."""
    path = today.path
    ledger = Ledger(path, warn)
    count = len(ledger)
    reasons: defaultdict[str, OldRows] = defaultdict(OldRows)
    runs = provenance.read(provenance.beside(path))

    def current(row: Measurement) -> Measurement | None:
        old = [part for part in today.changed(row) if part in parts]
        if not old:
            return row
        reasons[row.point.provider].add(today.reasons(row, old, runs.get(row.origin.run)))
        return None

    left = [current(row) for row in ledger.rows()]
    if is_written and None in left:
        reasons.clear()
        ledger.compact(current)  # of the rows as they are by then
    total = sum(old.count for old in reasons.values())
    if total:
        say(f"{path}: {total} of {count} rows {'were' if is_written else 'are'} old")
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

    def reasons(self, row: Measurement, old: Sequence[str], run: RunProvenance | None) -> list[str]:
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
