"""All that a folder of results holds as tables: the rows that count, finals, and what is old about them."""

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
from pipeline.execution import identity, versions
from pipeline.reporting.frames import frame, frame_of_finals
from pipeline.reporting.headlines import comparable, entry_of
from pipeline.reporting.shares import with_shares
from pipeline.store import finals, provenance, results
from pipeline.store.finals import Final
from pipeline.store.results import Results

STALE = ("source", "measurement", "environment")
"""The parts of a row's key that can be old: what its provider runs, the code that times and verifies, and the
machine's environment."""


@dataclass(frozen=True, eq=False)
class LoadedResults:
    """What was measured, with shares of today's ceilings.

    results:
        The measurements that can be compared, the machines' environments and ceilings.
    rows:
        These measurements as a frame, with what is ``stale`` about each, and the same as text in ``old``.
    every_final, finals:
        The finals of every run, and the newest of each problem.
    final_rows:
        The newest in burst as a frame.
    runs:
        The environments of runs.
    left_out:
        How many measurements are not among the rows: timed in other ways, or anew since.
    """

    results: Results
    rows: pd.DataFrame
    every_final: list[Final]
    finals: list[Final]
    final_rows: pd.DataFrame
    runs: Mapping[str, Environment]
    left_out: int


def load(folder: Path, warn: Callable[[str], None], local: bool) -> LoadedResults:
    """Read a folder, and with ``local`` of the repository's own results this host's too."""
    found = results.load(folder, warn, local)
    measured = with_shares(comparable(found.measurements), found.ceilings)
    rows = frame(measured)
    staleness = Staleness(found.environments)
    rows["stale"] = [staleness.parts(row) for row in measured]
    rows["old"] = rows["stale"].map(", ".join)
    held = finals.load(folder, warn, local)
    every_final = with_shares((row for some in held.values() for row in some), found.ceilings)
    newest = finals.newest_with_ours(every_final)
    return LoadedResults(
        results=Results(tuple(measured), found.environments, found.ceilings),
        rows=rows,
        every_final=every_final,
        finals=newest,
        final_rows=frame_of_finals(row for row in newest if row.power == "burst"),
        runs=provenance.environments(results.folders_of(folder, local)),
        left_out=len(found.measurements) - len(measured),
    )


class Staleness:
    """What is old about rows, beside the kernels here and the environments of their machines."""

    def __init__(self, environments: Mapping[str, Environment]) -> None:
        self._environments = environments
        self._now: dict[tuple[str, str, str], tuple[str, str, str | None]] = {}

    def parts(self, row: Measurement) -> tuple[str, ...]:
        """What of ``STALE`` a row was measured by that is not what is here now: another source, or none;
        another version of the measuring code; and another environment than its machine's, where that is
        known."""
        kernel, provider, gpu = place = row.point.kernel, row.point.provider, row.origin.gpu
        if place not in self._now:
            known = self._environments.get(gpu)
            self._now[place] = (
                source_of(kernel, provider),
                versions.measurement("cpu" if gpu.startswith("cpu-") else "cuda", TimingSettings().timer),
                None if known is None else relevant_environment(kernel, provider, known),
            )
        source, measurement, environment = self._now[place]
        now = (source, measurement, environment or row.parts.environment)
        then = (row.parts.source, row.parts.measurement, row.parts.environment)
        return tuple(part for part, new, old in zip(STALE, now, then, strict=True) if not new or old != new)


def source_of(kernel: str, provider: str) -> str:
    """The digest of what a provider runs now; empty for one that is not there."""
    entry = entry_of(kernel)
    try:
        if entry is None:
            return ""
        return identity.source(entry.loaded, entry.loaded.kernel.provider(provider)).digest
    except (KeyError, UserError):
        return ""


def relevant_environment(kernel: str, provider: str, environment: Environment) -> str | None:
    """The digest of an environment as it is in a provider's key; None where that can't be told: of a provider
    that is not there, and of a peer, whose package only the machine itself has."""
    entry = entry_of(kernel)
    known = {} if entry is None else {one.name: one for one in entry.loaded.kernel.providers}
    if provider not in known or known[provider].package:
        return None
    return digest(environment.keyed_for(known[provider]))


def providers(loaded: LoadedResults, kernels: Sequence[str]) -> dict[str, set[str]]:
    """The providers of each kernel that were measured, or were in finals."""
    found: dict[str, set[str]] = {kernel: set() for kernel in kernels}
    pairs = loaded.rows[["kernel", "provider"]].drop_duplicates().itertuples(index=False)
    for kernel, provider in (*pairs, *((one.point.kernel, one.point.provider) for one in loaded.every_final)):
        if kernel in found:
            found[kernel].add(provider)
    return found
