"""The times of providers that were not written here, wherever ledgers and finals of any run have them, and
whether they were taken in an environment equal to ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

from kernel_pipeline.contract import Provider
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.environment import Environment
from pipeline.points import notation
from pipeline.reporting.frames import distrusted, fastest_of_each
from pipeline.reporting.headlines import doubt, entry_of, is_bound
from pipeline.store.finals import Final

Place = tuple[str, str, str, str]
"""A kernel, a machine, a problem's words and its numbers."""


@dataclass(frozen=True)
class ProviderTime:
    """A time of a provider's configuration in microseconds, from a sweep or from finals, which have rounds.

    ``is_bound`` marks an upper bound, ``doubt`` is why the time is not to be trusted, ``environment`` the
    digest of the environment in the provider's key.
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
    """Which times were taken in equal environments. A time's environment is that of its run, else the one
    recorded of the ``machines``; where neither is known, the digest in its key tells."""

    def __init__(self, runs: Mapping[str, Environment], machines: Mapping[str, Environment]) -> None:
        self._runs = runs
        self._machines = machines
        self._equal: dict[tuple[str, ...], bool] = {}

    def equal(self, kernel: str, gpu: str, ours: ProviderTime, other: ProviderTime) -> bool:
        """Whether all that the other's provider depends on was the same when ours was timed. True where
        nothing is known of either."""
        pair = (kernel, gpu, ours.run, ours.environment, other.run, other.provider, other.environment)
        if pair not in self._equal:
            self._equal[pair] = self._is_equal(kernel, gpu, ours, other)
        return self._equal[pair]

    def _is_equal(self, kernel: str, gpu: str, ours: ProviderTime, other: ProviderTime) -> bool:
        there, provider = self._runs.get(other.run), declared(kernel, other.provider)
        here = self._runs.get(ours.run) or self._recorded(kernel, gpu, ours)
        if here is None or provider is None:
            return here is None or there is None or here.digest == there.digest
        relevant = here.keyed_for(provider)
        if there is not None:
            return relevant == there.keyed_for(provider)
        # Only the machine itself knows a peer's package, which is a part of its digest.
        is_unknown = provider.package is not None or not other.environment
        return is_unknown or digest(relevant) == other.environment

    def _recorded(self, kernel: str, gpu: str, time: ProviderTime) -> Environment | None:
        """The environment recorded of the machine, if the time's digest is of it."""
        provider, recorded = declared(kernel, time.provider), self._machines.get(gpu)
        if provider is None or recorded is None:
            return recorded
        return recorded if digest(recorded.keyed_for(provider)) == time.environment else None


class OtherTimes:
    """The times of each kernel's ``others`` by problem: of the sweeps' ``rows`` the fastest of each run, and
    the finals of every run. A throttled time counts as an upper bound; others that are not to be trusted
    don't count."""

    def __init__(
        self,
        rows: pd.DataFrame,
        held: Sequence[Final],
        others: Mapping[str, Sequence[str]],
        environments: Environments,
    ) -> None:
        self.others = others
        self._environments = environments
        self._swept = defaultdict[tuple[Place, str], list[ProviderTime]](list)
        self._held = defaultdict[tuple[Place, str], list[ProviderTime]](list)
        is_other = among(rows, others)
        usable = rows[rows["status"].eq("ok") & ~distrusted(rows) & is_other]
        for row in fastest_of_each(usable, ["provider", "run", "environment"]).to_dict("records"):
            self._swept[place_of(row), row["provider"]].append(time_of(row))
        for final in held:
            point, time = final.point, time_of_final(final)
            if final.power == "burst":
                place = (point.kernel, final.origin.gpu, notation.words(point), notation.extent(point))
                self._held[place, time.provider].append(time)

    def beside(self, place: Place, ours: ProviderTime) -> dict[str, ProviderTime]:
        """By provider its newest time in an environment equal to that of ours. The fastest configuration
        stands for a sweep, and for a run of finals."""
        found: dict[str, ProviderTime] = {}
        for name in self.others.get(place[0], ()):
            swept, held = (
                [
                    one
                    for one in times.get((place, name), ())
                    if self._environments.equal(*place[:2], ours, one)
                ]
                for times in (self._swept, self._held)
            )
            newest = max(held, key=lambda time: time.measured_at, default=None)
            last = [time for time in held if newest is not None and time.run == newest.run]
            best = [min(some, key=lambda time: time.us) for some in (swept, last) if some]
            if best:
                found[name] = max(best, key=lambda time: time.measured_at)
        return found


def among(rows: pd.DataFrame, names: Mapping[str, Iterable[str]]) -> pd.Series[bool]:
    """Whether each row's provider is among those that are named for its kernel."""
    named = {(kernel, name) for kernel, some in names.items() for name in some}
    pairs = zip(rows["kernel"], rows["provider"], strict=True)
    return pd.Series([pair in named for pair in pairs], index=rows.index, dtype=bool)


def place_of(row: Mapping[Any, Any]) -> Place:
    """The problem of a frame's row on its machine."""
    return row["kernel"], row["gpu"], row["words"], row["extent"]


def time_of(row: Mapping[Any, Any]) -> ProviderTime:
    """The time of a frame's row."""
    same = {name: row[name] for name in ("provider", "label", "run", "environment", "measured_at")}
    return ProviderTime(**same, us=row["median_us"], is_bound=is_bound(row), doubt=doubt(row))


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


def declared(kernel: str, name: str) -> Provider | None:
    """A kernel's provider; None for one that is not there."""
    entry = entry_of(kernel)
    known = () if entry is None else entry.loaded.kernel.providers
    return next((one for one in known if one.name == name), None)
