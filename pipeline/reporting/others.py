"""The times of the providers that ours are compared with, from the ledgers and from the finals of every run.

A time counts only if it was taken in the same environment as ours.
"""

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

from ..points import notation
from ..store.finals import Final
from .frames import distrusted, fastest_of_each
from .headlines import doubt, entry_of, is_bound

Place = tuple[str, str, str, str]
"""A kernel, a machine, a problem's words and its numbers."""


@dataclass(frozen=True)
class ProviderTime:
    """The time of a provider's configuration in microseconds, from a sweep or from finals.

    ``rounds`` is 0 for a sweep. ``is_bound`` marks an upper bound. ``doubt`` is why the time is distrusted,
    or empty. ``environment`` and ``source`` are the digests of the environment and of the provider's source
    in the row's key.
    """

    provider: str
    label: str
    us: float
    run: str
    environment: str
    source: str
    measured_at: datetime
    rounds: int = 0
    is_bound: bool = False
    doubt: str = ""


class Environments:
    """Decides whether two times were taken in equal environments.

    A time has the environment of its run. If the environment of the run is unknown, the machine's recorded
    environment and the digest in the time's key decide.
    """

    def __init__(self, runs: Mapping[str, Environment], machines: Mapping[str, Environment]) -> None:
        self._runs = runs
        self._machines = machines
        self._equal: dict[tuple[str, ...], bool] = {}

    def equal(self, kernel: str, gpu: str, ours: ProviderTime, other: ProviderTime) -> bool:
        """Return whether everything that the other's provider depends on was the same when ours was timed.

        Returns True if too little is known to tell.
        """
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
        # The digest includes the version of a peer's package or Numba, which only the machine itself knows.
        is_unknown = provider.package is not None or provider.language == "numba" or not other.environment
        return is_unknown or digest(relevant) == other.environment

    def _recorded(self, kernel: str, gpu: str, time: ProviderTime) -> Environment | None:
        """Return the machine's recorded environment, unless the time's digest contradicts it."""
        provider, recorded = declared(kernel, time.provider), self._machines.get(gpu)
        if provider is None or recorded is None:
            return recorded
        return recorded if digest(recorded.keyed_for(provider)) == time.environment else None


class OtherTimes:
    """The times of each kernel's ``others`` by problem.

    These are each run's fastest times in ``rows``, the rows of sweeps, and the burst finals of every run. A
    throttled time is an upper bound; other distrusted times are left out.
    """

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
        """Return a time of each provider from the same environment as ours.

        It is the newer of two: the provider's fastest time in sweeps, and its fastest in its newest finals.
        """
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
    """Return a mask of the rows whose provider is in ``names`` for the row's kernel."""
    named = {(kernel, name) for kernel, some in names.items() for name in some}
    pairs = zip(rows["kernel"], rows["provider"], strict=True)
    return pd.Series([pair in named for pair in pairs], index=rows.index, dtype=bool)


def place_of(row: Mapping[Any, Any]) -> Place:
    """Return the problem and machine of a frame's row."""
    return row["kernel"], row["gpu"], row["words"], row["extent"]


def time_of(row: Mapping[Any, Any]) -> ProviderTime:
    """Return the time of a frame's row."""
    same = {name: row[name] for name in ("provider", "label", "run", "environment", "source", "measured_at")}
    return ProviderTime(**same, us=row["median_us"], is_bound=is_bound(row), doubt=doubt(row))


def time_of_final(row: Final) -> ProviderTime:
    """Return the time of a final."""
    return ProviderTime(
        provider=row.point.provider,
        label=notation.label(row.point),
        us=row.median_us,
        run=row.origin.run,
        environment=row.parts.environment,
        source=row.parts.source,
        measured_at=row.origin.measured_at,
        rounds=len(row.rounds_us),
    )


def declared(kernel: str, name: str) -> Provider | None:
    """Return a kernel's provider; None if the kernel or the provider is unknown."""
    entry = entry_of(kernel)
    known = () if entry is None else entry.loaded.kernel.providers
    return next((one for one in known if one.name == name), None)
