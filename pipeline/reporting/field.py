"""Against the field: this repository's fastest provider at every problem, beside the other providers there.

The other providers were not written here to be fast: the kernel's baseline, torch.compile and torch's other
providers, this repository's textbook kernels, and the installed peers. A ratio is the other's time over ours:
above 1, ours is faster. If our providers had finals at a problem, their times are used, and the others' times
from the same finals. A provider that was not in these finals is shown with its newest time in an equal
environment. Without finals, our best time in the ledger counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from kernel_pipeline import problems
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Origin

from ..store.finals import Against, Final, fastest_of_ours, newest_with_ours, written_by
from .frames import PLACE, best_configurations, best_providers, distrusted, frame_of_finals
from .headlines import entry_of
from .others import OtherTimes, Place, ProviderTime, among, declared, place_of, time_of, time_of_final

NEAR = 0.99
"""With a ratio below this, the other is faster by more than 1 %."""


@dataclass(frozen=True)
class OtherRatio:
    """Another provider's time and its ratio to ours.

    ``against`` is the comparison in finals, None if the two were not measured side by side. ``is_elsewhere``
    says whether the two times come from different runs. ``doubt`` is the reason to distrust one of them, or
    empty.
    """

    time: ProviderTime
    ratio: float
    is_elsewhere: bool
    doubt: str
    against: Against | None = None

    @property
    def is_faster(self) -> bool:
        """Whether the other is faster by more than 1 %, unless finals judged the two ``same``."""
        return self.ratio < NEAR and (self.against is None or self.against.verdict != "same")


@dataclass(frozen=True, eq=False)
class HeadToHead:
    """Our fastest provider at one problem, ``ours``, beside the other providers that were timed there.

    ``headline`` names the rate that is compared, and ``rate`` is its value.

    ``unasked`` are our providers that can do the problem and were timed elsewhere on the GPU, but have no row
    here. The sweep has not reached them, so our fastest is not known yet.

    ``by_finals`` says whether the times come from finals. If so, ``oracle`` is the best of all our
    configurations by the sweep, and ``dispatched`` is the final of the configuration that a caller gets.
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
        """The kernel, machine, words and numbers of the problem."""
        return self.kernel, self.gpu, self.words, self.extent

    @property
    def is_level(self) -> bool:
        """Whether there are other providers, and every time of theirs is within 1 % of ours."""
        return bool(self.others) and all(NEAR <= one.ratio <= 1 / NEAR for one in self.others.values())

    @property
    def lost(self) -> list[str]:
        """The names of the others that are faster, the fastest first."""
        faster = [other for other, one in self.others.items() if one.is_faster]
        return sorted(faster, key=lambda other: self.others[other].ratio)


def others_of(kernel: str, providers: set[str]) -> tuple[str, ...]:
    """Return the providers that ours are compared with, in the order of their columns.

    For an unknown kernel these are the providers named after torch.
    """
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
    """Return every problem at which a sweep timed one of our providers and another provider was timed, too.

    They are ordered by kernel, GPU and problem. ``own`` names our providers by kernel. Distrusted timings are
    left out, except upper bounds.
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
    """Return a function from a problem to our providers that a sweep has yet to measure there."""
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
    """Return whether a provider can do a problem in a configuration, leaving the GPU's limits aside.

    A configuration that does not fit leaves no row in the ledger.
    """
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


LATER = 0.97
"""The share of the finals' time below which a later sweep's time of another provider or source outdoes
them."""


def _is_outdone(swept: ProviderTime | None, ours: ProviderTime, held: Mapping[str, str]) -> bool:
    """Whether a sweep after the finals found a faster provider of ours that they lack, or had from another
    source. ``held`` are the sources of the finals' providers."""
    if swept is None or held.get(swept.provider) == swept.source or swept.measured_at <= ours.measured_at:
        return False
    return swept.us < LATER * ours.us


def finals_count(held: Mapping[str, dict[str, Any]], swept: Mapping[str, dict[str, Any]]) -> bool:
    """Whether the rows of finals count, beside each provider's fastest in the sweeps at the problem: they
    have the fastest provider there, and no later source of it outdoes them."""
    fastest = min(swept.values(), key=lambda row: float(row["median_us"]))
    final = held.get(fastest["provider"])
    if final is None or final["source"] == fastest["source"]:
        return final is not None
    least = min(float(row["median_us"]) for row in held.values())
    return bool(final["measured_at"] > fastest["measured_at"] or fastest["median_us"] >= LATER * least)


def head_to_heads_of_finals(
    rows: Sequence[Final], swept: Sequence[HeadToHead], times: OtherTimes
) -> list[HeadToHead]:
    """Return every problem with finals of ours, by its newest finals.

    ``rows`` are the finals of every run. ``swept`` are the problems by the ledgers, for the oracles. Finals
    that lack the provider of ours that a later sweep found the fastest, or had it from another source, are
    left out.
    """
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
        if _is_outdone(oracles.get(place), ours, {row.point.provider: row.parts.source for row in some}):
            continue
        others = {other: _ratio(ours, time) for other, time in times.beside(place, ours).items()}
        side_by_side: dict[str, Final] = {}
        for row in sorted(some, key=lambda row: row.median_us, reverse=True):
            if row.against is not None and row.point.provider in times.others.get(place[0], ()):
                side_by_side[row.point.provider] = row  # the faster of two, if one is dispatched
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
    """Return the problems of each kernel on each GPU: those of its finals if it has finals, else those of its
    ledger."""
    had = {(one.kernel, one.gpu) for one in finals}
    both = [*finals, *(one for one in swept if (one.kernel, one.gpu) not in had)]
    return sorted(both, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))
