"""GPU against GPU: each kernel's fastest on either of two, at the problems that both were swept at.

A pair's ratio is b's time over a's. Beside it stands the ratio if both reached the same share of their
ceilings, how much of the difference that explains, and what the one's best configuration costs on the other.
Nothing was measured together, so that there is no verdict and no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from statistics import geometric_mean
from typing import Any

import pandas as pd

from pipeline.reporting.frames import best_configurations, best_providers

LEAST = log(1.02)
"""Of the logarithm of a ratio: a smaller difference is none that a ceiling could explain."""


@dataclass(frozen=True)
class CommonProblem:
    """Two GPUs at one problem: the fastest configuration on either and its time.

    ``by_ceilings`` is the ratio if both reached the same share of their ceilings, None where a ceiling is not
    known. ``a_on_b`` is the time of a's fastest configuration on b over that of b's own, None where it was
    not measured there or does not fit; ``b_on_a`` likewise.
    """

    kernel: str
    a: str
    b: str
    words: str
    extent: str
    rank: int
    a_best: str
    b_best: str
    a_us: float
    b_us: float
    by_ceilings: float | None
    a_on_b: float | None
    b_on_a: float | None

    @property
    def ratio(self) -> float:
        """b's time over a's."""
        return self.b_us / self.a_us

    @property
    def explained(self) -> float | None:
        """The share of the difference that the ceilings explain."""
        return explained(self.ratio, self.by_ceilings)

    @property
    def differs(self) -> bool:
        """Whether the GPUs have different best configurations."""
        return self.a_best != self.b_best


@dataclass(frozen=True)
class GpuPair:
    """Two GPUs at all of a kernel's common problems with the same words; ratios are geometric means.

    ``a_on_b`` and ``b_on_a`` are over the problems at which they are known; ``worst`` is the largest of
    both."""

    kernel: str
    a: str
    b: str
    words: str
    problems: int
    ratio: float
    by_ceilings: float | None
    differing: int
    a_on_b: float | None
    b_on_a: float | None
    worst: float | None

    @property
    def explained(self) -> float | None:
        """The share of the difference that the ceilings explain."""
        return explained(self.ratio, self.by_ceilings)


def explained(ratio: float, by_ceilings: float | None) -> float | None:
    """The share of a ratio's logarithm that the ratio of the ceilings makes up: 1 if the faster GPU is faster
    by as much as its ceiling is higher, less than 1 if it is faster than that. None where there is no
    difference to explain."""
    if by_ceilings is None or abs(log(ratio)) < LEAST:
        return None
    return log(by_ceilings) / log(ratio)


def common_problems(rows: pd.DataFrame, machines: Sequence[str] | None = None) -> list[CommonProblem]:
    """Every pair of machines at every problem that both were timed at, by kernel, pair and problem.

    ``rows`` are measurements as ``frames.frame`` gives them; timings not to be trusted are left out. The
    machines are those that are named, in this order, else all GPUs: a CPU is no model of a machine."""
    every_gpu = sorted(slug for slug in set(rows["gpu"]) if not slug.startswith("cpu-"))
    chosen = every_gpu if machines is None else list(machines)
    timed = rows[rows["gpu"].isin(chosen) & rows["status"].eq("ok") & ~rows["valid"].eq(False)]
    fastest = best_providers(best_configurations(timed))
    best = {(row["kernel"], row["gpu"], row["rank"]): row for row in fastest.to_dict("records")}
    columns = ["kernel", "rank", "gpu", "label"]
    met = timed[timed["label"].isin(set(fastest["label"]))]
    every: dict[Any, float] = met.groupby(columns)["median_us"].min().to_dict()
    found = []
    for kernel, of_kernel in timed.groupby("kernel"):
        ranks = {str(gpu): set(some["rank"]) for gpu, some in of_kernel.groupby("gpu")}
        for a, b in combinations([slug for slug in chosen if slug in ranks], 2):
            for rank in sorted(ranks[a] & ranks[b]):
                mine, theirs = best[kernel, a, rank], best[kernel, b, rank]
                a_on_b = every.get((str(kernel), rank, b, mine["label"]))
                b_on_a = every.get((str(kernel), rank, a, theirs["label"]))
                found.append(
                    CommonProblem(
                        kernel=str(kernel),
                        a=a,
                        b=b,
                        words=mine["words"],
                        extent=mine["extent"],
                        rank=rank,
                        a_best=mine["label"],
                        b_best=theirs["label"],
                        a_us=mine["median_us"],
                        b_us=theirs["median_us"],
                        by_ceilings=_by_ceilings(
                            mine["median_us"],
                            theirs["median_us"],
                            mine["ceiling_fraction"],
                            theirs["ceiling_fraction"],
                        ),
                        a_on_b=a_on_b and a_on_b / theirs["median_us"],
                        b_on_a=b_on_a and b_on_a / mine["median_us"],
                    )
                )
    return found


def pairs(some: Iterable[CommonProblem]) -> list[GpuPair]:
    """Common problems by kernel, pair and words, in their order."""
    groups: dict[tuple[str, str, str, str], list[CommonProblem]] = {}
    for one in some:
        groups.setdefault((one.kernel, one.a, one.b, one.words), []).append(one)
    found = []
    for (kernel, a, b, words), group in groups.items():
        a_on_b = [one.a_on_b for one in group if one.a_on_b is not None]
        b_on_a = [one.b_on_a for one in group if one.b_on_a is not None]
        ceilings = [one.by_ceilings for one in group if one.by_ceilings is not None]
        found.append(
            GpuPair(
                kernel=kernel,
                a=a,
                b=b,
                words=words,
                problems=len(group),
                ratio=geometric_mean([one.ratio for one in group]),
                by_ceilings=geometric_mean(ceilings) if len(ceilings) == len(group) else None,
                differing=sum(one.differs for one in group),
                a_on_b=_mean(a_on_b),
                b_on_a=_mean(b_on_a),
                worst=max([*a_on_b, *b_on_a], default=None),
            )
        )
    return found


def _by_ceilings(a_us: float, b_us: float, a_share: float | None, b_share: float | None) -> float | None:
    """b's time over a's if both reached the same share of their ceilings."""
    if pd.isna(a_share) or pd.isna(b_share) or not a_share or not b_share:
        return None
    return b_us / a_us * b_share / a_share


def _mean(values: Sequence[float]) -> float | None:
    return geometric_mean(values) if values else None
