"""Draw a sample of a ledger's rows: evenly over the providers, and over short and long times."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_pipeline import problems
from kernel_pipeline.machine import device
from kernel_pipeline.machine.device import Device
from kernel_pipeline.records.measurement import Measurement
from kernel_pipeline.records.point import order
from kernel_pipeline.records.settings import TimingSettings

from ..keys.identity import settings_beside
from ..points import plan
from ..points.catalog import Entry
from ..points.plan import Target
from ..store import results
from ..store.rows_that_count import own_rows

SHORTEST_US, LONGEST_US = 1.0, 1e4
"""The range of the chosen points' times."""


@dataclass(frozen=True)
class SampledRow:
    """A timed row with all that is needed to measure its point again in the same way. ``gpu`` is a hash of
    the UUID of the GPU that measured it, None if unknown."""

    row: Measurement
    entry: Entry
    timing: TimingSettings
    seed: int
    gpu: str | None = None

    @property
    def us(self) -> float:
        """The row's time in microseconds."""
        assert self.row.outcome.timing is not None, "a row without a time is no candidate"
        return self.row.outcome.timing.median_us


def candidates(
    entries: Sequence[Entry], folder: Path, chosen: Device, warn: Callable[[str], None]
) -> Iterator[SampledRow]:
    """Yield the timed rows of points that still exist. Old rows are included, because a row only names a
    point to measure."""
    target = Target(chosen.kind, device.capabilities(chosen))
    for entry in entries:
        ledger = results.ledger_path(folder, entry.name, chosen.slug)
        settings = settings_beside(ledger) or (TimingSettings(), 0)
        for row in own_rows(ledger, warn):
            timing = row.outcome.timing
            if (
                timing is not None
                and timing.timer in ("graph", "perf_counter")
                and SHORTEST_US <= timing.median_us <= LONGEST_US
                and problems.declares(entry.loaded.kernel, row.point)
                and plan.unavailable(entry.loaded.kernel.provider(row.point.provider), target) is None
            ):
                yield SampledRow(row, entry, *settings)


def sample(fresh: Sequence[SampledRow], count: int, seed: int) -> list[SampledRow]:
    """Return ``count`` of the rows, the same for the same seed. They are spread over all providers of all
    kernels as equally as the numbers of rows allow, and over each provider's times from short to long."""
    chance = random.Random(seed)
    groups: dict[tuple[str, str], list[SampledRow]] = defaultdict(list)
    for one in sorted(fresh, key=lambda one: (one.us, order(one.row.point))):
        groups[one.row.point.kernel, one.row.point.provider].append(one)
    quotas = _quotas({name: len(rows) for name, rows in groups.items()}, min(count, len(fresh)), chance)
    # Groups that give one row each still cover short to long times together.
    places = [(number + chance.random()) / len(quotas) for number in range(len(quotas))]
    chance.shuffle(places)
    drawn = []
    for (name, quota), place in zip(quotas.items(), places, strict=True):
        rows = groups[name]
        drawn += [rows[int((number + place) * len(rows) / quota)] for number in range(quota)]
    return drawn


def by_provider(one: SampledRow) -> tuple[object, ...]:
    """Return a sort key that puts the points of a provider together: each change of provider starts a
    process."""
    point = one.row.point
    return one.entry.name, point.provider, tuple(point.problem.values())


def _quotas(
    sizes: dict[tuple[str, str], int], count: int, chance: random.Random
) -> dict[tuple[str, str], int]:
    """Return the number of rows that each group gives. Groups give one row in turn while they have any, and
    kernels take turns, too."""
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
