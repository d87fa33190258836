"""The times of providers that were not written here, wherever the ledgers and the finals of any run have
them, and whether they were taken in an environment that is equal to ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from kernel_pipeline.contract import Provider
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.environment import Environment
from pipeline.points import notation
from pipeline.reporting import headlines
from pipeline.reporting.headlines import entry_of
from pipeline.reporting.ranking import distrusted, fastest_of_each
from pipeline.store.finals import Final

Place = tuple[str, str, str, str]
"""A kernel, a machine, a problem's words and its numbers."""


@dataclass(frozen=True)
class ProviderTime:
    """A time of a provider's configuration, in microseconds, of a sweep or of finals, which have rounds.

    ``is_bound`` says that it is an upper bound, and ``doubt`` why it is not to be trusted. ``environment`` is
    the digest of what of it is in the provider's key.
    """

    provider: str
    label: str
    us: float
    run: str
    environment: str
    measured_at: datetime
    rounds: int = 0
    is_bound: bool = False
    doubt: str = ""


class Environments:
    """Which times were taken in equal environments: by the lines of their runs, by name; of a run whose line
    does not tell, by another run with the same digest, or by what is recorded of the ``machines``."""

    def __init__(self, runs: Mapping[str, Environment], machines: Mapping[str, Environment]) -> None:
        self._runs = runs
        self._machines = machines
        self._seen: dict[tuple[str, str, str], Environment] = {}
        self._equal: dict[tuple[str, ...], bool] = {}

    def learn(self, kernel: str, provider: str, run: str, environment: str) -> None:
        """Note in which environment a provider's digest was seen."""
        if run in self._runs:
            self._seen.setdefault((kernel, provider, environment), self._runs[run])

    def equal(self, kernel: str, gpu: str, ours: ProviderTime, other: ProviderTime) -> bool:
        """Whether all that the other's provider depends on was the same when ours was timed. True where
        nothing is known of one of them."""
        sides = [(time.run, time.provider, time.environment) for time in (ours, other)]
        pair = (kernel, gpu, *sides[0], *sides[1])
        if pair not in self._equal:
            self._equal[pair] = self._is_equal(kernel, gpu, ours, other)
        return self._equal[pair]

    def _is_equal(self, kernel: str, gpu: str, ours: ProviderTime, other: ProviderTime) -> bool:
        here = self._of(kernel, ours) or self._recorded(kernel, gpu, ours)
        there = self._of(kernel, other)
        provider = _declared(kernel, other.provider)
        if here is None or provider is None:
            return here is None or there is None or here.digest == there.digest
        relevant = here.keyed_for(provider)
        if there is not None:
            return relevant == there.keyed_for(provider)
        # Only the machine itself knows a peer's package, which is a part of its digest.
        is_unknown = provider.package is not None or not other.environment
        return is_unknown or digest(relevant) == other.environment

    def _recorded(self, kernel: str, gpu: str, time: ProviderTime) -> Environment | None:
        provider, recorded = _declared(kernel, time.provider), self._machines.get(gpu)
        if provider is None or recorded is None:
            return recorded
        return recorded if digest(recorded.keyed_for(provider)) == time.environment else None

    def _of(self, kernel: str, time: ProviderTime) -> Environment | None:
        return self._runs.get(time.run) or self._seen.get((kernel, time.provider, time.environment))


def _declared(kernel: str, name: str) -> Provider | None:
    entry = entry_of(kernel)
    try:
        return None if entry is None else entry.loaded.kernel.provider(name)
    except KeyError:
        return None


class OtherTimes:
    """The times of each kernel's ``others`` by problem: of the sweeps' ``rows`` the fastest of each run, and
    of finals those of every run. A throttled time counts, as an upper bound; others that are not to be
    trusted don't."""

    def __init__(
        self,
        rows: pd.DataFrame,
        held: Sequence[Final],
        others: Mapping[str, Sequence[str]],
        environments: Environments,
    ) -> None:
        self.others = others
        self._environments = environments
        self._swept: dict[Place, dict[str, list[ProviderTime]]] = {}
        self._held: dict[Place, dict[str, list[ProviderTime]]] = {}
        columns = ["provider", "run", "environment"]
        for seen in rows[["kernel", *columns]].drop_duplicates().itertuples(index=False):
            environments.learn(*seen)
        usable = rows[rows["status"].eq("ok") & ~distrusted(rows) & self._are_of_others(rows)]
        for row in fastest_of_each(usable, columns).to_dict("records"):
            self._swept.setdefault(place_of(row), {}).setdefault(row["provider"], []).append(time_of(row))
        for final in held:
            time, place = time_of_final(final), place_of_final(final)
            environments.learn(place[0], time.provider, time.run, time.environment)
            if final.power == "burst" and time.provider in others.get(place[0], ()):
                self._held.setdefault(place, {}).setdefault(time.provider, []).append(time)

    def _are_of_others(self, rows: pd.DataFrame) -> pd.Series[bool]:
        named = {(kernel, name) for kernel, names in self.others.items() for name in names}
        pairs = zip(rows["kernel"], rows["provider"], strict=True)
        return pd.Series([pair in named for pair in pairs], index=rows.index, dtype=bool)

    def beside(self, place: Place, ours: ProviderTime) -> dict[str, ProviderTime]:
        """By provider its newest time in an environment equal to that of ours. The fastest configuration of
        the sweeps stands for all of them, and so does that of a run of finals."""
        found: dict[str, ProviderTime] = {}
        for name in self.others.get(place[0], ()):
            equal = [
                [
                    time
                    for time in times.get(place, {}).get(name, ())
                    if self._environments.equal(place[0], place[1], ours, time)
                ]
                for times in (self._swept, self._held)
            ]
            newest = max((time.measured_at for time in equal[1]), default=None)
            last = {time.run for time in equal[1] if time.measured_at == newest}
            best = [_fastest(equal[0]), _fastest(time for time in equal[1] if time.run in last)]
            known = [time for time in best if time is not None]
            if known:
                found[name] = max(known, key=lambda time: time.measured_at)
        return found


def _fastest(times: Iterable[ProviderTime]) -> ProviderTime | None:
    return min(times, key=lambda time: time.us, default=None)


def place_of(row: Mapping[Any, Any]) -> Place:
    """Where a frame's row meets others."""
    return row["kernel"], row["gpu"], row["words"], row["extent"]


def place_of_final(row: Final) -> Place:
    """Where a final meets others."""
    return row.point.kernel, row.origin.gpu, notation.words(row.point), notation.extent(row.point)


def time_of(row: Mapping[Any, Any]) -> ProviderTime:
    """The time of a frame's row."""
    return ProviderTime(
        provider=row["provider"],
        label=row["label"],
        us=row["median_us"],
        run=row["run"],
        environment=row["environment"],
        measured_at=row["measured_at"],
        is_bound=headlines.is_bound(row),
        doubt=headlines.doubt(row),
    )


def time_of_final(row: Final) -> ProviderTime:
    """The time of a final."""
    return ProviderTime(
        provider=row.point.provider,
        label=notation.label(row.point),
        us=row.median_us,
        run=row.origin.run,
        environment=row.parts.environment,
        measured_at=row.origin.measured_at,
        rounds=len(row.rounds_us),
    )
