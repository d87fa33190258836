"""Comparison of two GPUs: each kernel's fastest configuration on either, at the problems measured on both.

The ratio is b's time over a's. At each problem it comes from finals if both GPUs have finals, else from
sweeps. Only providers that ran the same source on both GPUs count. A second ratio assumes that both GPUs
reach the same share of their ceilings. Problems are grouped by their bound (memory, compute or launch), since
faster memory does not make launches faster. The GPUs were not measured side by side, so there is neither a
verdict nor an interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
from rich.console import Console

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.ceilings import Ceilings
from kernel_pipeline.records.fields import NAME
from kernel_pipeline.records.point import Point

from ..points.notation import plural
from ..store import finals, results
from ..store.rows_that_count import comparable, own_rows
from .frames import best_configurations, best_providers, frame, frame_of_finals, ranked_together
from .headlines import with_shares
from .numbers import number, speedup
from .tables import TextTable

LAUNCH_US = 10.0
"""A call shorter than this on either GPU counts as bound by its launch."""

UNKNOWN = "an unknown limit"
"""The bound without ceilings, and of a kernel that does not say what it moves and computes."""

BOUNDS = ("memory", "compute", "launch", UNKNOWN)

NOTHING_IN_COMMON = "No two GPUs have measured the same problem with the same source of a provider."


@dataclass(frozen=True)
class CommonProblem:
    """One problem on two GPUs: the fastest configuration on each GPU and its time.

    ``by_ceilings`` is the ratio if both GPUs reach the same share of their ceilings; None if a ceiling is
    unknown. ``a_on_b`` is the time on b of a's fastest configuration over the time of b's fastest; None if
    a's configuration was not timed on b. ``b_on_a`` is the same with the GPUs exchanged.
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
        """The time on b over the time on a."""
        return self.b_us / self.a_us

    @property
    def differs(self) -> bool:
        """Whether the fastest configurations of the GPUs differ."""
        return self.a_best != self.b_best


@dataclass(frozen=True)
class OtherSources:
    """The number of a kernel's problems that both GPUs measured, but with no provider whose source is
    the same on both."""

    kernel: str
    a: str
    b: str
    problems: int


@dataclass(frozen=True)
class GpuGroup:
    """Two GPUs at all common problems with the same bound.

    The ratios are geometric means over the problems. ``by_ceilings`` is None unless it is known at every
    problem.
    """

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
    """Compare every pair of machines at every common problem, ordered by kernel, pair and problem.

    ``swept`` is a frame of measurements and ``held`` a frame of finals. Distrusted timings are left out.
    Without ``machines`` all GPUs are compared, but no CPUs: a CPU's name does not identify a machine.
    """
    every = set(pd.concat([swept["gpu"], held["gpu"]]))
    chosen = machines or sorted(slug for slug in every if not slug.startswith("cpu-"))
    timed, of_finals = (
        rows[rows["status"].eq("ok") & ~rows["valid"].eq(False) & rows["gpu"].isin(chosen)]
        for rows in ranked_together(swept, held)
    )
    common: list[CommonProblem] = []
    others: list[OtherSources] = []
    for kernel in sorted({*timed["kernel"], *of_finals["kernel"]}):
        of_kernel, finals = (some[some["kernel"] == kernel] for some in (timed, of_finals))
        for pair in combinations(chosen, 2):
            in_finals, in_sweeps = (rows[rows["gpu"].isin(pair)] for rows in (finals, of_kernel))
            in_finals = in_finals[_on_both(in_finals)]
            in_sweeps = in_sweeps[~in_sweeps["rank"].isin(in_finals["rank"])]
            found, left = _pair(kernel, pair, in_finals, by_finals=True)
            more, more_left = _pair(kernel, pair, in_sweeps, by_finals=False)
            common += sorted([*found, *more], key=lambda one: one.rank)
            if left + more_left:
                others.append(OtherSources(kernel, *pair, left + more_left))
    return common, others


def _on_both(rows: pd.DataFrame, *names: str) -> pd.Series[bool]:
    """Whether both machines have rows of each row's problem, and of its values in the columns ``names``."""
    return rows.groupby(["rank", *names])["gpu"].transform("nunique").eq(2)


def _pair(
    kernel: str, pair: tuple[str, str], rows: pd.DataFrame, by_finals: bool
) -> tuple[list[CommonProblem], int]:
    """Compare two machines at a kernel's problems, and count the problems without a common source."""
    a, b = pair
    # A provider counts at a problem only if both GPUs ran the same source.
    some = rows[_on_both(rows, "provider", "source")]
    fastest = best_providers(best_configurations(some))
    best = {(row["gpu"], row["rank"]): row for row in fastest.to_dict("records")}
    every: dict[Any, float] = some.groupby(["rank", "gpu", "label"])["median_us"].min().to_dict()
    found = []
    for rank in sorted(set(some["rank"])):
        mine, theirs = best[a, rank], best[b, rank]
        a_us, b_us = mine["median_us"], theirs["median_us"]
        a_on_b, b_on_a = every.get((rank, b, mine["label"])), every.get((rank, a, theirs["label"]))
        a_share, b_share = mine["ceiling_fraction"], theirs["ceiling_fraction"]
        is_known = a_share > 0 and b_share > 0  # False for NaN
        bound = mine["bound"] if isinstance(mine["bound"], str) else UNKNOWN
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
                bound="launch" if min(a_us, b_us) < LAUNCH_US else bound,
                by_finals=by_finals,
                by_ceilings=b_us / a_us * b_share / a_share if is_known else None,
                a_on_b=a_on_b and a_on_b / b_us,
                b_on_a=b_on_a and b_on_a / a_us,
            )
        )
    return found, len(set(rows.loc[_on_both(rows), "rank"]) - set(some["rank"]))


def groups(some: Iterable[CommonProblem]) -> list[GpuGroup]:
    """Group common problems by pair of GPUs and bound."""
    gathered: dict[tuple[str, str, str], list[CommonProblem]] = {}
    for one in sorted(some, key=lambda one: (one.a, one.b, BOUNDS.index(one.bound))):
        gathered.setdefault((one.a, one.b, one.bound), []).append(one)
    found = []
    for place, group in gathered.items():
        ceilings = [one.by_ceilings for one in group if one.by_ceilings is not None]
        found.append(
            GpuGroup(
                *place,
                kernels=tuple(sorted({one.kernel for one in group})),
                problems=len(group),
                ratio=geometric_mean([one.ratio for one in group]),
                by_ceilings=geometric_mean(ceilings) if len(ceilings) == len(group) else None,
            )
        )
    return found


COLUMNS = (
    *("problem", "a's best", "b's best", "bound by", "by"),
    *("a us", "b us", "b / a", "by ceilings", "a's best on b", "b's best on a"),
)


def table(some: Sequence[CommonProblem], title: str, names: Mapping[str, str] | None = None) -> TextTable:
    """Return the table of common problems.

    Without ``names`` the rows are of one pair of machines. With ``names``, machine names by slug, the rows
    may be of several pairs, and two columns name the machines.
    """
    pairs = [[] if names is None else [names[one.a], names[one.b]] for one in some]
    return TextTable(
        title=title,
        columns=(COLUMNS[0], *(("a", "b") if names else ()), *COLUMNS[1:]),
        rows=[
            [first, *pair, *rest]
            for one, pair in zip(some, pairs, strict=True)
            for first, *rest in [_cells(one)]
        ],
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
    """Return a table with one row for each pair of GPUs and bound."""
    columns = ("a", "b", "bound by", "problems", "b's time / a's", "by ceilings", "kernels")
    rows = [
        [
            *(names[one.a], names[one.b], one.bound, str(one.problems)),
            *(speedup(one.ratio), speedup(one.by_ceilings), ", ".join(one.kernels)),
        ]
        for one in some
    ]
    about = [{"gpu": f"{one.a} {one.b}"} for one in some]
    return TextTable("Pairs of GPUs, by the bound of the problems", columns, rows, columns[3:6], about=about)


def sentence(group: GpuGroup) -> str:
    """Return a sentence with a group's bound, number of problems and mean ratios."""
    by_ceilings = "" if group.by_ceilings is None else f"; by their ceilings {speedup(group.by_ceilings)}"
    problems = plural(group.problems, "problem")
    return f"bound by {group.bound}: {problems}, b / a {speedup(group.ratio)}{by_ceilings}."


def left_out(some: Sequence[OtherSources], names: Mapping[str, str]) -> list[str]:
    """Return a sentence for each pair of GPUs with the problems of each kernel that lack a common source."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in some:
        found.setdefault((one.a, one.b), []).append(f"{one.kernel} ({plural(one.problems, 'problem')})")
    return [
        f"Not comparable on {names[a]} and {names[b]}: other sources. {', '.join(kernels)}."
        for (a, b), kernels in found.items()
    ]


def alone(common: Sequence[CommonProblem], rows: pd.DataFrame, names: Mapping[str, str]) -> str:
    """Return a sentence if several GPUs have rows but no two can be compared, else an empty string."""
    gpus = [slug for slug in names if slug in set(rows["gpu"]) and not slug.startswith("cpu-")]
    if common or len(gpus) < 2:
        return ""
    current = [slug for slug in gpus if not rows.loc[rows["gpu"] == slug, "old"].ne("").all()]
    if len(current) == 1:
        others = " and ".join(names[slug] for slug in gpus if slug not in current)
        return f"Only {names[current[0]]} has rows of this commit's sources; the rows of {others} are older."
    return NOTHING_IN_COMMON


NO_VERDICT = "They were not measured together: no verdict."


@dataclass(frozen=True)
class Machines:
    """Two machines with results in the folders; the first folder with a machine's file is used."""

    a: str
    b: str
    folders: Sequence[Path]
    warn: Callable[[str], None]

    @property
    def kernels(self) -> list[str]:
        """The kernels with timings or finals on both machines."""
        return sorted(kernels_of(self.a, self.folders) & kernels_of(self.b, self.folders))

    def show(self, console: Console, kernel: str, as_markdown: bool, wanted: Callable[[Point], bool]) -> bool:
        """Print both machines' times of a kernel at the ``wanted`` points.

        Returns False if the machines have no problem in common.
        """
        some, others = self._compared(kernel, wanted)

        def say(text: str) -> None:
            console.print(text, highlight=False, soft_wrap=True, markup=False)

        if some:
            heading = f"{kernel}: a is {self.a}, b is {self.b}"
            shown = table(some, heading)
            if as_markdown:
                say(f"**{heading}**\n\n{shown.markdown()}")
            else:
                shown.print(console)
            for group in groups(some):
                say(sentence(group))
        for line in left_out(others, {slug: slug for slug in (self.a, self.b)}):
            say(line)
        if some:
            say(NO_VERDICT)
        return bool(some or others)

    def _compared(
        self, kernel: str, wanted: Callable[[Point], bool]
    ) -> tuple[list[CommonProblem], list[OtherSources]]:
        ceilings: dict[str, Ceilings] = {}
        for folder in reversed(self.folders):
            ceilings |= results.machines(folder, self.warn)[1]
        rows, held = [], []
        for slug in (self.a, self.b):
            places = _places(slug, self.folders)
            ledgers = [results.ledger_path(place, kernel, slug) for place in places]
            rows += next((own_rows(path, self.warn) for path in ledgers if path.is_file()), [])
            of_finals = [finals.path(place, kernel, slug) for place in places]
            every = next((finals.read(path, self.warn) for path in of_finals if path.is_file()), [])
            held += [row for row in finals.newest(every) if row.power == "burst"]
        swept = with_shares(comparable(row for row in rows if wanted(row.point)), ceilings)
        shown = with_shares((row for row in held if wanted(row.point)), ceilings)
        return compared(frame(swept), frame_of_finals(shown), (self.a, self.b))


def found(
    a: str | None, b: str | None, folders: Sequence[Path], warn: Callable[[str], None]
) -> Machines | None:
    """Return the two machines that ``a`` and ``b`` name; None if neither names a machine with results.

    Raises UserError if only one of them names a machine, or if both name the same one.
    """
    known = [bool(text and kernels_of(text, folders)) for text in (a, b)]
    if not any(known):
        return None
    if not all(known):
        (name, machine), (other, none) = (("a", a), ("b", b)) if known[0] else (("b", b), ("a", a))
        others = ", ".join(sorted(_slugs(folders) - {machine})) or "none"
        missing = f"{other} is missing" if none is None else f"{other}={none} has no results"
        raise UserError(
            f"{name}={machine} is a machine, and {missing}; other machines with results: {others}."
        )
    if a == b:
        raise UserError(f"a and b are both {a}: write two machines.")
    return Machines(str(a), str(b), folders, warn)


def _slugs(folders: Sequence[Path]) -> set[str]:
    """Return the machines with timings or finals in any of the folders."""
    places = [place for folder in folders for place in results.folders_of(folder)]
    return {path.stem for place in places for path in _files(place, "*")}


def kernels_of(slug: str, folders: Sequence[Path]) -> set[str]:
    """Return the kernels with timings or finals on a machine; empty if ``slug`` names no machine."""
    if not re.fullmatch(NAME, slug):
        return set()
    return {path.parent.name for place in _places(slug, folders) for path in _files(place, slug)}


def _files(place: Path, slug: str) -> list[Path]:
    return [path for kind in ("timings", "finals") for path in place.glob(f"{kind}/*/{slug}.jsonl")]


def _places(slug: str, folders: Sequence[Path]) -> list[Path]:
    """Return the folders of a machine's results: CPU results lie outside the repository's own folder."""
    kind = "cpu" if slug.startswith("cpu-") else "cuda"
    return [results.folder_for(folder, kind) for folder in folders]
