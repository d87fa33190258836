"""Against the field: this repository's fastest provider at every problem, beside the others that were timed
there.

The others are all providers that were not written here to be fast: torch's, the kernel's baseline first, with
what torch.compile makes; the textbook kernels of this repository; and the peers that were installed. A ratio
is the other's time over ours: above 1 ours is the faster. Where ours had finals, these decide: the others
were measured side by side. A provider that was not among them counts by its newest time in an equal
environment. Where there are no finals, it is the best of each provider's times in the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Origin
from pipeline.points import problems
from pipeline.reporting.frames import PLACE, best_configurations, best_providers, distrusted, frame_of_finals
from pipeline.reporting.headlines import entry_of
from pipeline.reporting.others import (
    OtherTimes,
    Place,
    ProviderTime,
    among,
    declared,
    place_of,
    time_of,
    time_of_final,
)
from pipeline.store.finals import Against, Final, fastest_of_ours, newest_with_ours, written_by

NEAR = 0.99
"""Below this ratio the other is faster by more than 1 %."""


@dataclass(frozen=True)
class OtherRatio:
    """Another provider's time and its ratio to ours. ``against`` is there if both were measured side by side
    in finals, ``is_elsewhere`` if the time is of another run than ours. ``doubt`` is why one of the two times
    is not to be trusted."""

    time: ProviderTime
    ratio: float
    is_elsewhere: bool
    doubt: str
    against: Against | None = None

    @property
    def is_faster(self) -> bool:
        """Whether the other is faster by more than 1 %, as far as that is known."""
        return self.ratio < NEAR and (self.against is None or self.against.verdict != "same")


@dataclass(frozen=True, eq=False)
class HeadToHead:
    """Our fastest provider at one problem, ``ours``, beside each other that was timed there. ``rate`` is the
    one that is compared, ``headline`` its name.

    ``unasked`` are those of ours, timed elsewhere on the GPU, that could do the problem and of which the
    ledger says nothing here: the sweep has not come so far, and our fastest is not known. ``by_finals`` says
    that ours had finals; ``oracle`` is then the best of all our configurations by the sweep, and
    ``dispatched`` what a caller gets.
    """

    kernel: str
    gpu: str
    words: str
    extent: str
    problem: Values
    rank: int
    ours: ProviderTime
    headline: str
    rate: float
    ceiling_fraction: float | None
    others: Mapping[str, OtherRatio]
    unasked: tuple[str, ...] = ()
    by_finals: bool = False
    oracle: ProviderTime | None = None
    origin: Origin | None = None
    dispatched: Final | None = None

    @property
    def where(self) -> str:
        """The problem in words."""
        return f"{self.words} {self.extent}".strip()

    @property
    def place(self) -> Place:
        """The problem on its machine."""
        return self.kernel, self.gpu, self.words, self.extent

    @property
    def lost(self) -> list[str]:
        """The others that are faster, the fastest first."""
        faster = [other for other, one in self.others.items() if one.is_faster]
        return sorted(faster, key=lambda other: self.others[other].ratio)


def others_of(kernel: str, providers: set[str]) -> tuple[str, ...]:
    """The providers of a kernel that ours are compared with, in the order of their columns; of an unknown
    kernel those named after torch."""
    entry = entry_of(kernel)
    if entry is None:
        return tuple(sorted(name for name in providers if name.partition("_")[0] == "torch"))
    every = entry.loaded.kernel.providers
    compiled = [one.name for one in every if one.compiled]
    by_author = [one.name for by in ("torch", "textbook", "peer") for one in every if written_by(one) == by]
    ordered = dict.fromkeys([entry.loaded.kernel.baseline, *compiled, *by_author])
    return tuple(name for name in ordered if name in providers)


def head_to_heads(
    rows: pd.DataFrame, own: Mapping[str, frozenset[str]], times: OtherTimes
) -> list[HeadToHead]:
    """Every problem at which one of ours and another were timed, ours by a sweep, by kernel, GPU and problem.

    ``own`` is by kernel. Timings that are not to be trusted are left out, but for upper bounds.
    """
    usable = rows[rows["status"].eq("ok") & ~distrusted(rows)]
    ours = usable[among(usable, {kernel: own[kernel] - {*some} for kernel, some in times.others.items()})]
    unasked = _unasked(rows, ours)
    found = []
    for row in best_providers(best_configurations(ours)).to_dict("records"):
        place, time = place_of(row), time_of(row)
        if others := {name: _ratio(time, other) for name, other in times.beside(place, time).items()}:
            fraction = row["ceiling_fraction"]
            found.append(
                HeadToHead(
                    *place,
                    problem=row["problem"],
                    rank=row["rank"],
                    ours=time,
                    headline=row["headline"],
                    rate=row[row["headline"]],
                    ceiling_fraction=None if pd.isna(fraction) else fraction,
                    others=others,
                    unasked=unasked(place, row["problem"]),
                )
            )
    return sorted(found, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


def _unasked(rows: pd.DataFrame, ours: pd.DataFrame) -> Callable[[Place, Values], tuple[str, ...]]:
    """A function of a place and its problem: those of ours that a sweep has still to measure there."""
    tuned = defaultdict[Any, dict[str, set[Any]]](lambda: defaultdict(set))
    every = ours[["kernel", "gpu", "provider", "parameters"]].drop_duplicates()
    for kernel, gpu, provider, parameters in every.itertuples(index=False):
        tuned[kernel, gpu][provider].add(parameters)
    answered = set(rows[[*PLACE, "provider"]].itertuples(index=False, name=None))

    def of_place(place: Place, problem: Values) -> tuple[str, ...]:
        elsewhere = tuned[place[:2]]
        return tuple(
            name
            for name in sorted(elsewhere)
            if (*place, name) not in answered
            and any(_could(place[0], name, problem, one) for one in elsewhere[name])
        )

    return of_place


def _could(kernel: str, name: str, problem: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Whether a provider can do a problem in a configuration, as far as that does not depend on the GPU: a
    configuration that does not fit leaves no row."""
    entry, provider = entry_of(kernel), declared(kernel, name)
    if entry is None or provider is None:
        return False
    try:
        made = problems.make(provider.parameters, parameters) if provider.parameters else None
        return provider.fits(problems.make(entry.loaded.kernel.problem, problem), made, None) is None
    except UserError:
        return False


def _ratio(ours: ProviderTime, other: ProviderTime, against: Against | None = None) -> OtherRatio:
    return OtherRatio(
        time=other,
        ratio=other.us / ours.us if against is None else against.ratio,
        is_elsewhere=other.run != ours.run,
        doubt=other.doubt or ours.doubt,
        against=against,
    )


def head_to_heads_of_finals(
    rows: Sequence[Final], swept: Sequence[HeadToHead], times: OtherTimes
) -> list[HeadToHead]:
    """Every problem that had finals of ours, by its newest; ``rows`` are those of every run, and ``swept``
    the same problems by the ledgers."""
    oracles = {one.place: one.ours for one in swept}
    rows = [row for row in newest_with_ours(rows) if row.power == "burst"]
    named = dict(zip(rows, frame_of_finals(rows).to_dict("records"), strict=True))
    groups = defaultdict[Any, list[Final]](list)
    for row in rows:
        groups[row.origin.gpu, row.place].append(row)
    found = []
    for some in groups.values():
        best = fastest_of_ours(some)
        if best is None:
            continue
        name, ours = named[best], time_of_final(best)
        place = place_of(name)
        others = {other: _ratio(ours, time) for other, time in times.beside(place, ours).items()}
        side_by_side: dict[str, Final] = {}
        for row in sorted(some, key=lambda row: row.median_us, reverse=True):
            if row.against is not None and row.point.provider in times.others.get(place[0], ()):
                side_by_side[row.point.provider] = row  # of two, one of them dispatched, the faster
        for other, row in sorted(side_by_side.items()):
            others[other] = _ratio(ours, time_of_final(row), row.against)
        found.append(
            HeadToHead(
                *place,
                problem=best.point.problem,
                rank=name["rank"],
                ours=ours,
                headline=name["headline"],
                rate=name[name["headline"]],
                ceiling_fraction=best.rate.ceiling_fraction,
                others=others,
                by_finals=True,
                oracle=oracles.get(place),
                origin=best.origin,
                dispatched=next((row for row in some if row.dispatched is not None), None),
            )
        )
    return sorted(found, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


def preferred(swept: Sequence[HeadToHead], finals: Sequence[HeadToHead]) -> list[HeadToHead]:
    """Those of finals for each kernel and GPU that had any, else those of the ledgers."""
    had = {(one.kernel, one.gpu) for one in finals}
    both = [*finals, *(one for one in swept if (one.kernel, one.gpu) not in had)]
    return sorted(both, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))
