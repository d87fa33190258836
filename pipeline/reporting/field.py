"""Against the field: this repository's fastest provider at every problem, beside the others that were timed
there.

The others are all that were not written here to be fast: torch's, the kernel's baseline first, with what
torch.compile makes; the kernels written here as everybody writes them; and the peers that were installed. A
ratio is the other's time over ours: above 1 ours is the faster. Where there are finals, these say it: the
others were measured side by side. One that was not among them counts by its newest time in an equal
environment. Where there are none, it is the best of each provider's times in the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import pandas as pd

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.measurement import Origin
from pipeline.points import problems
from pipeline.reporting.frames import frame_of_finals
from pipeline.reporting.headlines import entry_of
from pipeline.reporting.others import OtherTimes, ProviderTime, place_of, time_of, time_of_final
from pipeline.reporting.ranking import PLACE, best_configurations, best_providers, distrusted
from pipeline.store.finals import Against, Final, How, fastest_of_ours, newest_with_ours, written_by

NEAR = 0.99
"""A ratio from here on says that the other is not faster by more than 1 %."""


def others_of(kernel: str, providers: set[str]) -> tuple[str, ...]:
    """Those of a kernel's providers that ours are compared with, in the order of their columns: all that were
    not written here to be fast. Of a kernel that is not there those named after torch."""
    entry = entry_of(kernel)
    if entry is None:
        return tuple(sorted(name for name in providers if name.partition("_")[0] == "torch"))
    declared = entry.loaded.kernel
    compiled = [one.name for one in declared.providers if one.compiled]
    written = {one.name: written_by(one) for one in declared.providers}
    by_author = [name for by in ("torch", "textbook", "peer") for name in written if written[name] == by]
    ordered = dict.fromkeys([declared.baseline, *compiled, *by_author])
    return tuple(name for name in ordered if name in providers)


@dataclass(frozen=True)
class DispatchedTime:
    """What a caller gets at a problem: a provider in a configuration, its time, how it was chosen, and its
    time over that of our fastest."""

    label: str
    us: float
    how: How
    ratio: float


@dataclass(frozen=True)
class OtherRatio:
    """Another's time, and that over ours. ``against`` is there for two that were measured side by side in
    finals; ``is_elsewhere`` says that the time is of another run than ours. ``doubt`` is why one of the two
    times is not to be trusted."""

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
    """Our fastest provider at one problem, ``ours``, and how each other that was timed there does beside it.
    ``rate`` is the one that people compare, ``headline`` says which that is.

    ``by_finals`` says that ours had finals; ``oracle`` is then the best of all our configurations by the
    sweep, and its time. ``dispatched`` is what a caller gets.
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
    unasked: tuple[str, ...]
    """Those of ours, timed elsewhere on the GPU, that the ledger says nothing of here and that could do it: a
    sweep has not come so far, and our fastest is not known."""
    by_finals: bool = False
    oracle: ProviderTime | None = None
    origin: Origin | None = None
    dispatched: DispatchedTime | None = None

    @property
    def where(self) -> str:
        """The problem in words."""
        return f"{self.words} {self.extent}".strip()

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Where they meet."""
        return self.kernel, self.gpu, self.words, self.extent

    @property
    def ratios(self) -> dict[str, float]:
        """Each other's time over ours."""
        return {other: one.ratio for other, one in self.others.items()}

    @property
    def lost(self) -> list[str]:
        """The others that are faster, the fastest first."""
        faster = [other for other, one in self.others.items() if one.is_faster]
        return sorted(faster, key=lambda other: self.others[other].ratio)


@dataclass(frozen=True)
class Score:
    """All problems of a kernel on one GPU against one of the others."""

    mean: float
    worst: float
    won: int
    problems: int


def head_to_heads(
    rows: pd.DataFrame, own: Mapping[str, frozenset[str]], times: OtherTimes
) -> list[HeadToHead]:
    """Every problem at which one of ours and another were timed, ours by a sweep, by kernel, GPU and problem.

    ``own`` is by kernel. Timings that are not to be trusted are left out, but for upper bounds.
    """
    usable = rows[rows["status"].eq("ok") & ~distrusted(rows)]
    is_ours = [
        provider in own[kernel] and provider not in times.others[kernel]
        for kernel, provider in zip(usable["kernel"], usable["provider"], strict=True)
    ]
    of_ours = usable[pd.Series(is_ours, index=usable.index, dtype=bool)]
    tuned = defaultdict[Any, dict[str, set[Any]]](lambda: defaultdict(set))
    every = of_ours[["kernel", "gpu", "provider", "parameters"]].drop_duplicates()
    for kernel, gpu, provider, parameters in every.itertuples(index=False):
        tuned[kernel, gpu][provider].add(parameters)
    answered = defaultdict[Any, set[str]](set)
    for row in rows[[*PLACE, "provider"]].drop_duplicates().to_dict("records"):
        answered[tuple(row[key] for key in PLACE)].add(row["provider"])
    found = []
    for row in best_providers(best_configurations(of_ours)).to_dict("records"):
        place, ours = place_of(row), time_of(row)
        others = {name: _ratio(ours, time) for name, time in times.beside(place, ours).items()}
        if not others:
            continue
        kernel, gpu = place[:2]
        elsewhere = tuned[kernel, gpu]
        fraction = row["ceiling_fraction"]
        found.append(
            HeadToHead(
                *place,
                problem=row["problem"],
                rank=row["rank"],
                ours=ours,
                headline=row["headline"],
                rate=row[row["headline"]],
                ceiling_fraction=None if pd.isna(fraction) else fraction,
                others=others,
                unasked=tuple(
                    name
                    for name in sorted(elsewhere.keys() - answered[place])
                    if any(could(kernel, name, row["problem"], one) for one in elsewhere[name])
                ),
            )
        )
    return sorted(found, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


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
    """Every problem that had finals of ours, of its newest; ``rows`` are those of every run, and ``swept``
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
        name, ours, rate = named[best], time_of_final(best), best.rate
        place = place_of(name)
        others = {other: _ratio(ours, time) for other, time in times.beside(place, ours).items()}
        for other, row in sorted(_fastest_of_each(some).items()):
            if other in times.others.get(place[0], ()):
                others[other] = _ratio(ours, time_of_final(row), row.against)
        found.append(
            HeadToHead(
                *place,
                problem=best.point.problem,
                rank=name["rank"],
                ours=ours,
                headline=name["headline"],
                rate=name[name["headline"]],
                ceiling_fraction=rate.ceiling_fraction,
                others=others,
                unasked=(),
                by_finals=True,
                oracle=oracles.get(place),
                origin=best.origin,
                dispatched=next(
                    (
                        DispatchedTime(
                            named[row]["label"],
                            row.median_us,
                            row.dispatched,
                            1.0 if row.against is None else row.against.ratio,
                        )
                        for row in some
                        if row.dispatched is not None
                    ),
                    None,
                ),
            )
        )
    return sorted(found, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


def _fastest_of_each(some: Sequence[Final]) -> dict[str, Final]:
    """Of each provider that was compared with ours the final; of one that stands there twice, once as what is
    dispatched, the faster."""
    found: dict[str, Final] = {}
    for row in sorted(some, key=lambda row: row.median_us, reverse=True):
        if row.against is not None:
            found[row.point.provider] = row
    return found


def preferred(swept: Sequence[HeadToHead], finals: Sequence[HeadToHead]) -> list[HeadToHead]:
    """Those of finals for each kernel and GPU that had any, else those of the ledgers."""
    had = {(one.kernel, one.gpu) for one in finals}
    both = [*finals, *(one for one in swept if (one.kernel, one.gpu) not in had)]
    return sorted(both, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


def could(kernel: str, provider: str, problem: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    """Whether a provider can do a problem in a configuration, as far as that does not depend on the GPU: what
    does not fit leaves no row. False for a provider that is not there."""
    entry = entry_of(kernel)
    if entry is None:
        return False
    declared = entry.loaded.kernel
    try:
        one = declared.provider(provider)
        made = problems.make(one.parameters, parameters) if one.parameters else None
        return one.fits(problems.make(declared.problem, problem), made, None) is None
    except (KeyError, UserError):
        return False


def scores(some: Sequence[HeadToHead], others: Sequence[str]) -> dict[str, Score]:
    """Against each of the others that was met."""
    against = {other: [one.ratios[other] for one in some if other in one.others] for other in others}
    return {
        other: Score(
            mean=geometric_mean(ratios),
            worst=min(ratios),
            won=sum(not one.others[other].is_faster for one in some if other in one.others),
            problems=len(ratios),
        )
        for other, ratios in against.items()
        if ratios
    }
