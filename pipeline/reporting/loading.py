"""Read a folder of results: the rows to show, the finals, and the old parts of each row's key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import digest
from kernel_pipeline.records.environment import Environment
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.settings import TimingSettings

from ..keys import identity, versions
from ..store import finals, provenance, results
from ..store.finals import Final
from ..store.results import Results
from ..store.rows_that_count import comparable
from .frames import frame, frame_of_finals
from .headlines import entry_of, with_shares

STALE = ("source", "measurement", "environment")
"""The parts of a row's key that can be old: its provider's source, the measuring code, the environment."""


@dataclass(frozen=True, eq=False)
class LoadedResults:
    """The measurements and finals of a folder, with shares of the newest ceilings.

    results:
        The measurements that can be compared, and the machines' environments and ceilings.
    rows:
        The measurements as a frame; the column ``old`` lists the old parts of each: ``source, measurement``.
    every_final, finals:
        The finals of every run, and the newest of each problem.
    final_rows:
        The newest burst finals as a frame.
    runs:
        The environment of each run.
    left_out:
        The number of measurements not in ``rows``: timed in other ways, or measured again later.
    """

    results: Results
    rows: pd.DataFrame
    every_final: list[Final]
    finals: list[Final]
    final_rows: pd.DataFrame
    runs: Mapping[str, Environment]
    left_out: int

    def providers(self, kernels: Sequence[str]) -> dict[str, set[str]]:
        """Return the providers of each kernel that have measurements or finals."""
        found: dict[str, set[str]] = {kernel: set() for kernel in kernels}
        pairs = self.rows[["kernel", "provider"]].drop_duplicates().itertuples(index=False)
        for kernel, name in (*pairs, *((one.point.kernel, one.point.provider) for one in self.every_final)):
            if kernel in found:
                found[kernel].add(name)
        return found


def load(folder: Path, warn: Callable[[str], None], local: bool) -> LoadedResults:
    """Read a folder of results; with ``local``, the repository's own folder includes this host's results."""
    found = results.load(folder, warn, local)
    measured = with_shares(comparable(found.measurements), found.ceilings)
    staleness = Staleness(found.environments)
    held = finals.load(folder, warn, local)
    every_final = with_shares((row for some in held.values() for row in some), found.ceilings)
    newest = finals.newest_with_ours(every_final)
    return LoadedResults(
        results=Results(tuple(measured), found.environments, found.ceilings),
        rows=frame(measured).assign(old=[", ".join(staleness.parts(row)) for row in measured]),
        every_final=every_final,
        finals=newest,
        final_rows=frame_of_finals(row for row in newest if row.power == "burst"),
        runs=provenance.environments(results.folders_of(folder, local)),
        left_out=len(found.measurements) - len(measured),
    )


class Staleness:
    """Compares rows' keys with the kernels here and with the machines' recorded ``environments``."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self._environments = environments
        self._now: dict[tuple[str, str, str], tuple[str | None, str, str | None]] = {}

    def parts(self, row: Measurement) -> tuple[str, ...]:
        """Return the parts of ``STALE`` that are old in a row's key.

        The source is old if the provider no longer exists. An unknown environment counts as unchanged.
        """
        place = row.point.kernel, row.point.provider, row.origin.gpu
        if place not in self._now:
            self._now[place] = self._parts_now(*place)
        source, measurement, environment = self._now[place]
        now = (source, measurement, environment or row.parts.environment)
        then = (row.parts.source, row.parts.measurement, row.parts.environment)
        return tuple(part for part, new, old in zip(STALE, now, then, strict=True) if not new or new != old)

    def _parts_now(self, kernel: str, name: str, gpu: str) -> tuple[str | None, str, str | None]:
        kind = "cpu" if gpu.startswith("cpu-") else "cuda"
        measurement = versions.measurement(kind, TimingSettings().timer)
        try:
            entry = entry_of(kernel)
            if entry is None:
                return None, measurement, None
            provider = entry.loaded.kernel.provider(name)
            source = identity.source(entry.loaded, provider).digest
        except (KeyError, UserError):
            return None, measurement, None
        environment = self._environments.get(gpu)
        # Only the machine itself knows the version of a peer's package that it has.
        if environment is None or provider.package:
            return source, measurement, None
        return source, measurement, digest(environment.keyed_for(provider))
