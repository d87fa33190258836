"""Against the field: this repository's fastest provider at every shape, beside the others that were timed
there.

The others are torch (the kernel's baseline), torch.compile, the textbook Triton kernel that holds a row a
program, and the peers that were installed. A ratio is the rival's time over ours: above 1 ours is the faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import pandas as pd
from kernels.point import DTYPE_NAMES

from pipeline.store.results import PLACE, best_configurations, best_providers, label

TEXTBOOK = "triton_row"
"""Written here, but as everybody writes it: a rival, not one of ours."""

RIVALS = ("torch", "torch_compile", TEXTBOOK, "quack", "liger")
"""By the name of their column; ``torch`` stands for the kernel's baseline."""


@dataclass(frozen=True, eq=False)
class Meeting:
    """Our fastest provider at one shape, and how each rival that was timed there does beside it."""

    kernel: str
    gpu: str
    dtype: str
    shape: tuple[int, ...]
    ours: str
    us: float
    gbps: float
    ceiling_fraction: float | None
    ratios: Mapping[str, float]
    unasked: tuple[str, ...]
    """Those of ours, timed elsewhere on the GPU, that the ledger says nothing of here: a sweep has not come
    so far, and our fastest is not known."""

    @property
    def lost(self) -> list[str]:
        """The rivals that are faster."""
        return [rival for rival, ratio in self.ratios.items() if ratio < 1]


@dataclass(frozen=True)
class Score:
    """All shapes of a kernel on one GPU against one rival."""

    mean: float
    worst: float
    won: int
    shapes: int


def meetings(
    rows: pd.DataFrame, own: Mapping[str, frozenset[str]], baselines: Mapping[str, str]
) -> list[Meeting]:
    """Every shape at which one of ours and a rival were timed, by kernel, GPU, dtype and shape.

    ``own`` and ``baselines`` are by kernel. Timings that are not to be trusted are left out.
    """
    best = best_configurations(rows[~rows["valid"].eq(False)])
    ours_timed, answered = defaultdict[Any, set[str]](set), defaultdict[Any, set[str]](set)
    is_ours = []
    for row in best[["kernel", "gpu", "provider"]].to_dict("records"):
        is_ours.append(row["provider"] in own[row["kernel"]] and row["provider"] != TEXTBOOK)
        if is_ours[-1]:
            ours_timed[row["kernel"], row["gpu"]].add(row["provider"])
    for row in rows[[*PLACE, "provider"]].drop_duplicates().to_dict("records"):
        answered[tuple(row[key] for key in PLACE)].add(row["provider"])
    times = best.set_index([*PLACE, "provider"])["median_us"].to_dict()
    found = []
    for ours in best_providers(best[pd.Series(is_ours, index=best.index, dtype=bool)]).to_dict("records"):
        place = tuple(ours[key] for key in PLACE)
        providers = {"torch": baselines[ours["kernel"]]}
        rivals = {rival: times.get((*place, providers.get(rival, rival))) for rival in RIVALS}
        ratios = {rival: us / ours["median_us"] for rival, us in rivals.items() if us is not None}
        if ratios:
            fraction = ours["ceiling_fraction"]
            found.append(
                Meeting(
                    kernel=ours["kernel"],
                    gpu=ours["gpu"],
                    dtype=ours["dtype"],
                    shape=tuple(ours["shape"]),
                    ours=label(ours),
                    us=ours["median_us"],
                    gbps=ours["gbps"],
                    ceiling_fraction=None if pd.isna(fraction) else fraction,
                    ratios=ratios,
                    unasked=tuple(sorted(ours_timed[ours["kernel"], ours["gpu"]] - answered[place])),
                )
            )
    return sorted(found, key=lambda m: (m.kernel, m.gpu, DTYPE_NAMES.index(m.dtype), m.shape))


def scores(some: Sequence[Meeting]) -> dict[str, Score]:
    """Against each rival that was met."""
    against = {rival: [m.ratios[rival] for m in some if rival in m.ratios] for rival in RIVALS}
    return {
        rival: Score(
            mean=geometric_mean(ratios),
            worst=min(ratios),
            won=sum(ratio >= 1 for ratio in ratios),
            shapes=len(ratios),
        )
        for rival, ratios in against.items()
        if ratios
    }
