"""GPU against GPU: each kernel's fastest on either of two, at the problems that both have measured.

A pair's ratio is b's time over a's. It rests on the finals of both where both had some of the kernel, else on
their sweeps, and counts providers alone that ran the same source on both. Beside it stands the ratio if both
reached the same share of their ceilings. Problems are grouped by what bounds them, for a GPU with the faster
memory is no faster at launching. Nothing was measured together, so that there is no verdict and no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import geometric_mean
from typing import Any

import pandas as pd

from pipeline.points import notation
from pipeline.reporting.numbers import number, speedup
from pipeline.reporting.ranking import best_configurations, best_providers
from pipeline.reporting.tables import TextTable

LAUNCH_US = 10.0
"""A call that is shorter on either GPU is bound by its launch."""

BOUNDS = ("memory", "compute", "launch")


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
    bound: str
    by_finals: bool
    by_ceilings: float | None
    a_on_b: float | None
    b_on_a: float | None

    @property
    def ratio(self) -> float:
        """b's time over a's."""
        return self.b_us / self.a_us

    @property
    def differs(self) -> bool:
        """Whether the GPUs have different best configurations."""
        return self.a_best != self.b_best


@dataclass(frozen=True)
class OtherSources:
    """How many problems of a kernel both of two GPUs have measured without a provider of the same source."""

    kernel: str
    a: str
    b: str
    problems: int


@dataclass(frozen=True)
class GpuGroup:
    """Two GPUs at all common problems with the same bound; ratios are geometric means, and ``by_ceilings`` is
    None where it is not known at all of them."""

    a: str
    b: str
    bound: str
    kernels: tuple[str, ...]
    problems: int
    ratio: float
    by_ceilings: float | None


def compared(
    swept: pd.DataFrame, held: pd.DataFrame, machines: Sequence[str] | None = None
) -> tuple[list[CommonProblem], list[OtherSources]]:
    """Every pair of machines at every problem that both have measured, by kernel, pair and problem.

    ``swept`` are measurements and ``held`` finals as ``frames`` gives them; timings not to be trusted are
    left out. The machines are those that are named, in this order, else all GPUs: a CPU is no model of a
    machine."""
    every = pd.concat([swept["gpu"], held["gpu"]])
    chosen = (
        sorted(slug for slug in set(every) if not slug.startswith("cpu-"))
        if machines is None
        else list(machines)
    )
    common: list[CommonProblem] = []
    others: list[OtherSources] = []
    timed, of_finals = (_timed(some, chosen) for some in (swept, held))
    for kernel in sorted({*timed["kernel"], *of_finals["kernel"]}):
        of_kernel, finals = (some[some["kernel"] == kernel] for some in (timed, of_finals))
        for pair in combinations(chosen, 2):
            by_finals = set(pair) <= set(finals["gpu"])
            rows = finals if by_finals else of_kernel
            found, left = _pair(str(kernel), pair, rows[rows["gpu"].isin(pair)], by_finals)
            common += found
            if left:
                others.append(OtherSources(str(kernel), *pair, left))
    return common, others


def _timed(rows: pd.DataFrame, machines: Sequence[str]) -> pd.DataFrame:
    return rows[rows["gpu"].isin(machines) & rows["status"].eq("ok") & ~rows["valid"].eq(False)]


def _pair(
    kernel: str, pair: tuple[str, str], rows: pd.DataFrame, by_finals: bool
) -> tuple[list[CommonProblem], int]:
    """Two machines at the problems of a kernel, and at how many no provider's source is the same."""
    a, b = pair
    met = rows.groupby("rank")["gpu"].transform("nunique") == len(pair)
    # A provider counts at a problem where both ran the same source of it.
    same = rows.groupby(["rank", "provider", "source"])["gpu"].transform("nunique") == len(pair)
    some = rows[same]
    left = len(set(rows.loc[met, "rank"]) - set(some["rank"]))
    fastest = best_providers(best_configurations(some))
    best = {(row["gpu"], row["rank"]): row for row in fastest.to_dict("records")}
    every: dict[Any, float] = some.groupby(["rank", "gpu", "label"])["median_us"].min().to_dict()
    found = []
    for rank in sorted(set(some["rank"])):
        mine, theirs = best[a, rank], best[b, rank]
        a_us, b_us = mine["median_us"], theirs["median_us"]
        a_on_b, b_on_a = every.get((rank, b, mine["label"])), every.get((rank, a, theirs["label"]))
        found.append(
            CommonProblem(
                kernel=kernel,
                a=a,
                b=b,
                words=mine["words"],
                extent=mine["extent"],
                rank=rank,
                a_best=mine["label"],
                b_best=theirs["label"],
                a_us=a_us,
                b_us=b_us,
                bound="launch" if min(a_us, b_us) < LAUNCH_US else _bound(mine["bound"]),
                by_finals=by_finals,
                by_ceilings=_by_ceilings(a_us, b_us, mine["ceiling_fraction"], theirs["ceiling_fraction"]),
                a_on_b=a_on_b and a_on_b / b_us,
                b_on_a=b_on_a and b_on_a / a_us,
            )
        )
    return found, left


def _bound(known: object) -> str:
    """What bounds a problem; of a kernel that is gone nothing is known but its bytes."""
    return known if isinstance(known, str) else "memory"


def groups(some: Iterable[CommonProblem]) -> list[GpuGroup]:
    """Common problems by pair and bound."""
    gathered: dict[tuple[str, str, str], list[CommonProblem]] = {}
    for one in sorted(some, key=lambda one: (one.a, one.b, BOUNDS.index(one.bound))):
        gathered.setdefault((one.a, one.b, one.bound), []).append(one)
    found = []
    for (a, b, bound), group in gathered.items():
        ceilings = [one.by_ceilings for one in group if one.by_ceilings is not None]
        found.append(
            GpuGroup(
                a=a,
                b=b,
                bound=bound,
                kernels=tuple(sorted({one.kernel for one in group})),
                problems=len(group),
                ratio=geometric_mean([one.ratio for one in group]),
                by_ceilings=geometric_mean(ceilings) if len(ceilings) == len(group) else None,
            )
        )
    return found


def _by_ceilings(a_us: float, b_us: float, a_share: float | None, b_share: float | None) -> float | None:
    """b's time over a's if both reached the same share of their ceilings."""
    if pd.isna(a_share) or pd.isna(b_share) or not a_share or not b_share:
        return None
    return b_us / a_us * b_share / a_share


NOTHING_IN_COMMON = "No two GPUs have measured the same problem with the same source of a provider."

COLUMNS = (
    *("problem", "a's best", "b's best", "bound by", "by"),
    *("a us", "b us", "b / a", "by ceilings", "a's best on b", "b's best on a"),
)


def table(some: Sequence[CommonProblem], title: str) -> TextTable:
    """Common problems of two machines."""
    return TextTable(title, COLUMNS, [_cells(one) for one in some], numbers=COLUMNS[5:])


def kernel_table(kernel: str, some: Sequence[CommonProblem], names: Mapping[str, str]) -> TextTable:
    """A kernel's common problems on all pairs of machines."""
    return TextTable(
        title=f"{kernel}: GPU against GPU",
        columns=("problem", "a", "b", *COLUMNS[1:]),
        rows=[[first, names[one.a], names[one.b], *rest] for one in some for first, *rest in [_cells(one)]],
        numbers=COLUMNS[5:],
        about=[{"gpu": f"{one.a} {one.b}", "words": one.words, "sort": str(one.rank)} for one in some],
    )


def _cells(one: CommonProblem) -> list[str]:
    return [
        f"{one.extent} {one.words}".strip(),
        one.a_best,
        one.b_best if one.differs else "the same",
        one.bound,
        "finals" if one.by_finals else "sweeps",
        number(one.a_us),
        number(one.b_us),
        *map(speedup, (one.ratio, one.by_ceilings, one.a_on_b, one.b_on_a)),
    ]


def group_table(some: Sequence[GpuGroup], names: Mapping[str, str]) -> TextTable:
    """A line a pair and bound."""
    columns = ("a", "b", "bound by", "problems", "b's time / a's", "by ceilings", "kernels")
    rows = [
        [
            *(names[one.a], names[one.b], one.bound, str(one.problems)),
            *(speedup(one.ratio), speedup(one.by_ceilings), ", ".join(one.kernels)),
        ]
        for one in some
    ]
    about = [{"gpu": f"{one.a} {one.b}"} for one in some]
    return TextTable("Pairs of GPUs, by what bounds the problems", columns, rows, columns[3:6], about=about)


def sentence(group: GpuGroup) -> str:
    """The means of two GPUs over the problems with the same bound."""
    by_ceilings = "" if group.by_ceilings is None else f"; by their ceilings {speedup(group.by_ceilings)}"
    problems = notation.plural(group.problems, "problem")
    return f"bound by {group.bound}: {problems}, b / a {speedup(group.ratio)}{by_ceilings}."


def left_out(some: Sequence[OtherSources], names: Mapping[str, str]) -> list[str]:
    """A sentence a pair: at how many problems of which kernels nothing can be compared."""
    found: dict[tuple[str, str], list[OtherSources]] = {}
    for one in some:
        found.setdefault((one.a, one.b), []).append(one)
    return [
        f"Not comparable on {names[a]} and {names[b]}: other sources. "
        + ", ".join(f"{one.kernel} ({notation.plural(one.problems, 'problem')})" for one in group)
        + "."
        for (a, b), group in found.items()
    ]


def alone(common: Sequence[CommonProblem], rows: pd.DataFrame, names: Mapping[str, str]) -> str:
    """The line in place of the table where several GPUs have rows and no two can be compared; empty where two
    can, or where there are not two."""
    gpus = [slug for slug in names if slug in set(rows["gpu"]) and not slug.startswith("cpu-")]
    if common or len(gpus) < 2:
        return ""
    current = [slug for slug in gpus if not rows.loc[rows["gpu"] == slug, "stale"].map(bool).all()]
    if len(current) == 1:
        others = " and ".join(names[slug] for slug in gpus if slug not in current)
        return f"Only {names[current[0]]} has rows of this commit's sources; those of {others} are older."
    return NOTHING_IN_COMMON
