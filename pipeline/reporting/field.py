"""Against the field: this repository's fastest provider at every problem, beside the others that were timed
there.

The others are the kernel's baseline in torch, torch.compile, the kernels written here as everybody writes
them, and the peers that were installed. A ratio is the rival's time over ours: above 1 ours is the faster.
Where there are finals, these say it: the rivals were measured side by side. Where there are none, it is the
best of each provider's times in the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any

import pandas as pd

from pipeline import UserError
from pipeline.points import problems
from pipeline.reporting.frames import (
    best_configurations,
    best_providers,
    entry_of,
    frame_of_finals,
)
from pipeline.reporting.ranking import PLACE
from pipeline.store.finals import Against, Final, How, fastest_of_ours
from pipeline.store.record import Origin


def rivals_of(kernel: str, providers: set[str]) -> tuple[str, ...]:
    """Those of a kernel's providers that ours are compared with, in the order of their columns; of a kernel
    that is not there those named after torch."""
    entry = entry_of(kernel)
    if entry is None:
        return tuple(sorted(name for name in providers if name.partition("_")[0] == "torch"))
    declared = entry.loaded.kernel
    compiled = [one.name for one in declared.providers if one.compiled]
    peers = [one.name for one in declared.providers if one.package]
    textbook = [one.name for one in declared.providers if one.textbook]
    rivals = dict.fromkeys([declared.baseline, *compiled, *textbook, *peers])
    return tuple(name for name in rivals if name in providers)


@dataclass(frozen=True)
class DispatchedTime:
    """What a caller gets at a problem: a provider in a configuration, its time, how it was chosen, and its
    time over that of our fastest."""

    label: str
    us: float
    how: How
    ratio: float


@dataclass(frozen=True, eq=False)
class HeadToHead:
    """Our fastest provider at one problem, and how each rival that was timed there does beside it. ``rate``
    is the one that people compare, ``headline`` says which that is.

    ``finals`` are those of the rivals that had finals; ``oracle`` is then the best of all our configurations
    by the sweep, and its time. ``dispatched`` is what a caller gets.
    """

    kernel: str
    gpu: str
    words: str
    extent: str
    rank: int
    ours: str
    us: float
    headline: str
    rate: float
    ceiling_fraction: float | None
    ratios: Mapping[str, float]
    unasked: tuple[str, ...]
    """Those of ours, timed elsewhere on the GPU, that the ledger says nothing of here and that could do it: a
    sweep has not come so far, and our fastest is not known."""
    finals: Mapping[str, Against] = field(default_factory=dict)
    oracle: tuple[str, float] | None = None
    origin: Origin | None = None
    dispatched: DispatchedTime | None = None

    @property
    def lost(self) -> list[str]:
        """The rivals that are faster, as far as that is known."""
        if self.finals:
            return [rival for rival, one in self.finals.items() if one.verdict == "faster"]
        return [rival for rival, ratio in self.ratios.items() if ratio < 1]


@dataclass(frozen=True)
class Score:
    """All problems of a kernel on one GPU against one rival."""

    mean: float
    worst: float
    won: int
    problems: int


def head_to_heads(
    rows: pd.DataFrame, own: Mapping[str, frozenset[str]], rivals: Mapping[str, Sequence[str]]
) -> list[HeadToHead]:
    """Every problem at which one of ours and a rival were timed, by kernel, GPU and problem.

    ``own`` and ``rivals`` are by kernel. Timings that are not to be trusted are left out.
    """
    trusted = rows[rows["status"].eq("ok") & ~rows["valid"].eq(False)]
    is_ours = [
        provider in own[kernel] and provider not in rivals[kernel]
        for kernel, provider in zip(trusted["kernel"], trusted["provider"], strict=True)
    ]
    of_ours = trusted[pd.Series(is_ours, index=trusted.index, dtype=bool)]
    tuned = defaultdict[Any, dict[str, set[Any]]](lambda: defaultdict(set))
    every = of_ours[["kernel", "gpu", "provider", "parameters"]].drop_duplicates()
    for kernel, gpu, provider, parameters in every.itertuples(index=False):
        tuned[kernel, gpu][provider].add(parameters)
    answered = defaultdict[Any, set[str]](set)
    for row in rows[[*PLACE, "provider"]].drop_duplicates().to_dict("records"):
        answered[tuple(row[key] for key in PLACE)].add(row["provider"])
    best = best_configurations(trusted)
    times = best.set_index([*PLACE, "provider"])["median_us"].to_dict()
    found = []
    for ours in best_providers(best_configurations(of_ours)).to_dict("records"):
        place = tuple(ours[key] for key in PLACE)
        others = {rival: times.get((*place, rival)) for rival in rivals[ours["kernel"]]}
        ratios = {rival: us / ours["median_us"] for rival, us in others.items() if us is not None}
        if not ratios:
            continue
        fraction = ours["ceiling_fraction"]
        elsewhere = tuned[ours["kernel"], ours["gpu"]]
        found.append(
            HeadToHead(
                kernel=ours["kernel"],
                gpu=ours["gpu"],
                words=ours["words"],
                extent=ours["extent"],
                rank=ours["rank"],
                ours=ours["label"],
                us=ours["median_us"],
                headline=ours["headline"],
                rate=ours[ours["headline"]],
                ceiling_fraction=None if pd.isna(fraction) else fraction,
                ratios=ratios,
                unasked=tuple(
                    name
                    for name in sorted(elsewhere.keys() - answered[place])
                    if any(could(ours["kernel"], name, ours["problem"], one) for one in elsewhere[name])
                ),
            )
        )
    return sorted(found, key=lambda versus: (versus.kernel, versus.gpu, versus.rank))


def head_to_heads_of_finals(
    rows: Sequence[Final], swept: Sequence[HeadToHead], rivals: Mapping[str, Sequence[str]]
) -> list[HeadToHead]:
    """Every problem that had finals, of its newest; ``swept`` are the same problems by the ledgers."""
    oracles = {(one.kernel, one.gpu, one.words, one.extent): (one.ours, one.us) for one in swept}
    table = frame_of_finals(rows)
    named = dict(zip(rows, table.to_dict("records"), strict=True))
    groups = defaultdict[Any, list[Final]](list)
    for row in rows:
        if row.power == "burst":
            groups[row.origin.gpu, row.place].append(row)
    found = []
    for (gpu, _), some in groups.items():
        best = fastest_of_ours(some)
        if best is None:
            continue
        kernel = best.point.kernel
        others: dict[str, Against] = {}
        for row in some:
            # Of a provider that stands there twice, once as what is dispatched, the faster.
            known = others.get(row.point.provider)
            if row.against is not None and (known is None or row.against.ratio < known.ratio):
                others[row.point.provider] = row.against
        finals = {rival: others[rival] for rival in rivals.get(kernel, ()) if rival in others}
        name = named[best]
        rate = best.rate
        found.append(
            HeadToHead(
                kernel=kernel,
                gpu=gpu,
                words=name["words"],
                extent=name["extent"],
                rank=name["rank"],
                ours=name["label"],
                us=best.median_us,
                headline=best.headline,
                rate=rate.gbps if best.headline == "gbps" else rate.tflops,
                ceiling_fraction=rate.ceiling_fraction,
                ratios={rival: one.ratio for rival, one in finals.items()},
                unasked=(),
                finals=finals,
                oracle=oracles.get((kernel, gpu, name["words"], name["extent"])),
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


def scores(some: Sequence[HeadToHead], rivals: Sequence[str]) -> dict[str, Score]:
    """Against each of the rivals that was met."""
    against = {rival: [one.ratios[rival] for one in some if rival in one.ratios] for rival in rivals}
    return {
        rival: Score(
            mean=geometric_mean(ratios),
            worst=min(ratios),
            won=sum(rival not in one.lost for one in some if rival in one.ratios),
            problems=len(ratios),
        )
        for rival, ratios in against.items()
        if ratios
    }
