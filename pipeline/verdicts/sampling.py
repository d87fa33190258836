"""Which rows stand for a ledger's: as equally of all providers as may be, from short to long times."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import order
from kernel_pipeline.records.settings import TimingSettings
from pipeline.points.catalog import Entry


@dataclass(frozen=True)
class SampledRow:
    """A timed row, with what it takes to measure its point again in the same way; ``gpu`` is a hash of the
    UUID of the GPU that measured it, None where that is not known."""

    row: Measurement
    entry: Entry
    timing: TimingSettings
    seed: int
    gpu: str | None = None

    @property
    def us(self) -> float:
        """The row's time."""
        assert self.row.outcome.timing is not None, "a row without a time is no candidate"
        return self.row.outcome.timing.median_us


def sample(fresh: Sequence[SampledRow], count: int, seed: int) -> list[SampledRow]:
    """So many of the rows, the same for the same seed: as equally of all providers of all kernels as their
    rows allow, and of each provider from short to long times."""
    chance = random.Random(seed)
    groups: dict[tuple[str, str], list[SampledRow]] = defaultdict(list)
    for one in sorted(fresh, key=lambda one: (one.us, order(one.row.point))):
        groups[one.row.point.kernel, one.row.point.provider].append(one)
    quotas = _quotas({name: len(rows) for name, rows in groups.items()}, min(count, len(fresh)), chance)
    # Where a group gives one row, the groups together still go from short to long.
    places = [(number + chance.random()) / len(quotas) for number in range(len(quotas))]
    chance.shuffle(places)
    drawn = []
    for (name, quota), place in zip(quotas.items(), places, strict=True):
        rows = groups[name]
        drawn += [rows[int((number + place) * len(rows) / quota)] for number in range(quota)]
    return drawn


def by_provider(one: SampledRow) -> tuple[object, ...]:
    """A sort key that lets the points of a provider follow each other: another takes another process."""
    point = one.row.point
    return one.entry.name, point.provider, tuple(point.problem.values())


def _quotas(
    sizes: dict[tuple[str, str], int], count: int, chance: random.Random
) -> dict[tuple[str, str], int]:
    """How many rows each group gives: one more of each in turn while it has any, kernels in turn too."""
    of_kernel: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name in sorted(sizes):
        of_kernel[name[0]].append(name)
    for names in of_kernel.values():
        chance.shuffle(names)
    longest = max(map(len, of_kernel.values()))
    in_turn = [names[place] for place in range(longest) for names in of_kernel.values() if place < len(names)]
    quotas: dict[tuple[str, str], int] = {}
    while count:
        for name in in_turn:
            if count and quotas.get(name, 0) < sizes[name]:
                quotas[name] = quotas.get(name, 0) + 1
                count -= 1
    return quotas
