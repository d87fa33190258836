"""Say why rows are old, and remove old rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from kernel_pipeline import loading, problems
from kernel_pipeline.contract import Provider
from kernel_pipeline.records import variables
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement, Parts
from kernel_pipeline.records.settings import TIMERS, TimingSettings

from ..store import provenance, results
from ..store.ledger import Ledger
from ..store.provenance import RunProvenance
from . import identity, versions
from .identity import Identity, settings_digest

MOST = 6
"""The maximum number of reasons that are named; further parts are only counted."""

NOT_SET = "not set"


class OldRows:
    """Counts old rows by the reasons why they are old."""

    def __init__(self) -> None:
        self.count = 0
        self.reasons: Counter[str] = Counter()

    def add(self, reasons: Iterable[str]) -> None:
        """Count a row that is old for these reasons."""
        self.count += 1
        self.reasons.update(dict.fromkeys(reasons, 1))

    def said(self, of: str = "row") -> str:
        """Return a sentence on how many rows are old and why; empty if no row is."""
        if not self.count:
            return ""
        parts = [
            reason if number == self.count else f"{reason} ({number:,} of them)"
            for reason, number in self.reasons.most_common(MOST)
        ]
        if (more := len(self.reasons) - MOST) > 0:
            parts.append(f"and {more} more reason{'s' * (more > 1)}")
        are = "is" if self.count == 1 else "are"
        return f"{self.count:,} {of}{'s' * (self.count > 1)} {are} old: {'; '.join(parts)}"


def reasons(
    row: Measurement, identity: Identity, runs: Mapping[str, RunProvenance], any_settings: bool = False
) -> list[str]:
    """Return why a row is old here and now; empty for a fresh row.

    With ``any_settings`` the settings of its timing do not matter. ``runs`` are the runs that rows name.
    """
    if not problems.declares(identity.loaded.kernel, row.point):
        return [without_point(row)]
    now = identity.parts(row.point)
    if any_settings:
        now = now.replace(settings=row.parts.settings)
    provider = identity.loaded.kernel.provider(row.point.provider)
    settings = with_seed(identity.settings, identity.seed)
    return of_parts(row, now, runs.get(row.origin.run), provider, identity.environment, settings)


def without_point(row: Measurement) -> str:
    """Return the reason of a row whose point the kernel no longer declares."""
    return f"{row.point.kernel}/{row.point.provider} no longer declares the point"


def with_seed(settings: TimingSettings, seed: int) -> dict[str, Any]:
    """Return the values that are in a key's settings, by name."""
    return {**settings.to_dict(), "seed": seed}


def of_parts(
    row: Measurement,
    now: Parts,
    run: RunProvenance | None,
    provider: Provider,
    environment: Environment | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """Return the reasons for each part in which a row's key differs from ``now``.

    ``run`` is the row's run if it is known. ``environment`` and ``settings`` are the current values.
    """
    found = []
    for part in row.parts.differences(now):
        if part == "source":
            found.append(f"the source of {row.point.kernel}/{row.point.provider} changed")
        elif part == "measurement":
            found.append(of_measurement(row.parts.measurement, now.measurement))
        elif part == "environment":
            then = None if run is None else run.environment
            found += of_environment(then, environment, provider)
        elif part == "settings":
            timed = None if run is None or run.timing is None else {**run.timing, "seed": run.seed}
            found += of_settings(timed, settings)
        else:
            found.append(f"the point of {row.point.kernel}/{row.point.provider} changed")
    return found


def of_measurement(then: str, now: str) -> str:
    """Return the reason why a row is old: another version of the measuring code measured it."""
    return f"measured by {_version(then)} of the measuring code, this is {_version(now)}"


def _version(text: str) -> str:
    return f"version {text}" if text.isdigit() else f"'{text}'"


def of_environment(then: Environment | None, now: Environment | None, provider: Provider) -> list[str]:
    """Return the differences between two environments in a provider's key."""
    if then is None or now is None:
        return ["the environment changed, and the old one is not known"]
    before, after = (_flat(one.keyed_for(provider)) for one in (then, now))
    found = _differences(before, after)
    on_gpu = now.kind == "cuda"
    found += [
        f"{name} was {value}, and is no longer part of any key"
        for name, value in then.flags.items()
        if not variables.is_in_key(name, on_gpu)
    ]
    package = provider.package or ("numba" if provider.language == "numba" else "")
    return found or [
        f"the version of {package} changed, and the old one is not known"
        if package
        else "the key held other parts of the environment"
    ]


def _flat(keyed: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in keyed.items() if name != "flags"}, **keyed["flags"]}


def of_settings(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two runs' settings of timing and seeds."""
    if then is None:
        return ["the timing settings changed, and the old settings are not known"]
    return _differences(then, now) or ["the key held other settings"]


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys((*then, *now))
    return [
        f"{name} was {then.get(name, NOT_SET)}, is {now.get(name, NOT_SET)}"
        for name in names
        if then.get(name, NOT_SET) != now.get(name, NOT_SET)
    ]


Say = Callable[[str], None]


def prune_ledger(today: Today, parts: Sequence[str], is_written: bool, say: Say, warn: Say) -> int:
    """Say which rows of a ledger are old by one of the parts, and with ``is_written`` remove them.

    Returns the number of these rows.
    """
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
        ledger.compact(current)  # rows may have been added since: all are judged again
    total = sum(old.count for old in reasons.values())
    if total:
        say(f"{path}: {total} of {count} rows {'were' if is_written else 'are'} old")
        for provider, old in sorted(reasons.items()):
            say(f"  {provider}: {old.said()}")
    return total


def prune_runs(folder: Path, gpu: str | None = None) -> int:
    """Drop the lines of runs, of all machines or of one, that no row names any more. Returns their number."""

    def named(slug: str) -> set[str]:
        paths = (one for kind in provenance.IN_RESULTS for one in folder.glob(f"{kind}/*/{slug}.jsonl"))
        return {run for path in paths for run in provenance.named_in(path)}

    return sum(
        provenance.prune(path, partial(named, path.stem))
        for path in sorted((folder / provenance.FOLDER).glob(f"{gpu or '*'}.jsonl"))
    )


class Today:
    """The current parts of the keys of one ledger's rows.

    The environment is the last one of the ledger's machine, and the settings come from the sweep that last
    wrote the ledger, according to the files beside it. A part that is not in these files makes no row old.
    """

    def __init__(self, path: Path, loaded: loading.Loaded) -> None:
        self.path = path
        self.loaded = loaded
        self.kind = "cpu" if path.stem.startswith("cpu-") else "cuda"
        self._sources: dict[str, str] = {}

    def reasons(self, row: Measurement, old: Sequence[str], run: RunProvenance | None) -> list[str]:
        """Return why a row is old by the parts ``old``."""
        if "point" in old:
            return [without_point(row)]
        provider = self.loaded.kernel.provider(row.point.provider)
        timer = TimingSettings().timer if self.settings is None else self.settings[0].timer
        today = dict.fromkeys(old, "another")
        if "measurement" in old:
            today["measurement"] = versions.measurement(self.kind, timer)
        settings = {} if self.settings is None else with_seed(*self.settings)
        now = row.parts.replace(**today)
        return of_parts(row, now, run, provider, self.environment, settings)

    def changed(self, row: Measurement) -> list[str]:
        """Return the parts by which a row is old."""
        if not problems.declares(self.loaded.kernel, row.point):
            return ["point"]
        provider = self.loaded.kernel.provider(row.point.provider)
        if provider.name not in self._sources:
            self._sources[provider.name] = identity.source(self.loaded, provider).digest
        now: dict[str, set[str]] = {
            "source": {self._sources[provider.name]},
            "measurement": self.measurements(row.parts.settings),
        }
        # No file has the versions of Numba and of a peer's package on the ledger's machine.
        is_recorded = not provider.package and provider.language != "numba"
        if self.environment is not None and is_recorded:
            now["environment"] = {digest(self.environment.keyed_for(provider))}
        if self.settings is not None:
            now["settings"] = {settings_digest(*self.settings)}
        return [part for part, those in now.items() if getattr(row.parts, part) not in those]

    def measurements(self, settings: str) -> set[str]:
        """Return today's versions of the measuring code for the timer that these settings name.

        If the timer is not known, the versions of all timers are returned.
        """
        timers: Sequence[str] = TIMERS
        if self.settings is not None and settings == settings_digest(*self.settings):
            timers = [self.settings[0].timer]
        return {versions.measurement(self.kind, timer) for timer in timers}

    @cached_property
    def environment(self) -> Environment | None:
        """The machine's environment, as its last sweep or ``pipeline.environment`` found it."""
        path = results.environment_path(self.path.parents[2], self.path.stem)
        return results.read(Environment, path) if path.exists() else None

    @cached_property
    def settings(self) -> tuple[TimingSettings, int] | None:
        """The timing's settings and the seed of the sweep that last wrote the ledger."""
        return identity.settings_beside(self.path)
