"""The overview: one number for our fastest at each kernel on each machine, its problems, and the plot.

The overview, its plot and the metrics share one definition: at each problem the speedup of this repository's
fastest provider over the kernel's baseline. Times come from finals if the machine has finals of the kernel,
else from the sweeps. The problems come from the kernel's first workload. The page takes the problems that all
GPUs have in common, since means over different problems can't be compared. A machine's metrics do not depend
on other machines. Several problems are shown by their geometric mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, get_args

import pandas as pd

from kernel_pipeline.records.measurement import Status

from .charts import RATIOS, SHAPES, Style
from .field import HeadToHead
from .numbers import GAP, percent, speedup
from .plots import leading

WORDLESS = "all"
"""The entry in the metrics for a kernel whose dimensions are all numbers, in place of words."""

MOST_NAMED = 3
"""Up to this many problems are all named; beyond, only the first and the last."""

NONE = "-"
"""Stands for a missing number, as in the output of ``dvc metrics``."""


@dataclass(frozen=True)
class Summary:
    """Our fastest at a kernel's problems with the same words on one machine.

    ``speedup`` is the baseline's time over ours. ``rate`` is the rate that ``headline`` names, and
    ``ceiling_fraction`` our share of the machine's ceiling. All three are geometric means over ``problems``,
    the problems' numbers in order. ``by_finals`` says whether the times come from finals. ``doubts`` are the
    reasons to distrust the speedup. ``is_once`` says whether any time rests on one round.
    """

    kernel: str
    gpu: str
    words: str
    problems: tuple[str, ...]
    by_finals: bool
    speedup: float
    headline: str
    rate: float
    ceiling_fraction: float | None
    doubts: tuple[str, ...] = ()
    is_once: bool = False

    @property
    def where(self) -> str:
        """The problems in words: ``16384``, or ``7 problems, 256 to 16384``."""
        if len(self.problems) <= MOST_NAMED:
            return ", ".join(self.problems)
        return f"{len(self.problems)} problems, {self.problems[0]} to {self.problems[-1]}"


Groups = Mapping[tuple[str, str, str], Sequence[HeadToHead]]
"""Problems by kernel, machine and words."""


def summaries(
    field: Sequence[HeadToHead],
    rows: pd.DataFrame,
    held: pd.DataFrame,
    baselines: Mapping[str, str],
    *,
    in_common: bool,
) -> list[Summary]:
    """Return a summary for each kernel, machine and combination of words.

    ``rows`` is a frame of measurements and ``held`` a frame of finals. With ``in_common``, a GPU's summary is
    over the problems that all GPUs have, so that GPUs can be compared. A GPU without a problem in common with
    the GPU that has the most is left out.
    """
    measured = set(rows[["kernel", "gpu"]].drop_duplicates().itertuples(index=False, name=None))
    known: dict[tuple[str, str, str], list[HeadToHead]] = {}
    for one in field:
        is_measured = (one.kernel, one.gpu) in measured  # there may be finals alone
        if is_measured and baselines[one.kernel] in one.others and not one.unasked:
            known.setdefault((one.kernel, one.gpu, one.words), []).append(one)
    groups = _leading(_in_common(known) if in_common else known, rows, held)
    groups = _in_common(groups) if in_common else groups
    return [_summary(some, baselines[kernel]) for (kernel, *_), some in groups.items()]


def _leading(groups: Groups, rows: pd.DataFrame, held: pd.DataFrame) -> Groups:
    """Return the problems of each kernel's first workload."""
    places = ["kernel", "gpu", "words", "extent", "workload", "rank"]
    timed, in_finals = (some[some["status"] == "ok"].drop_duplicates(places) for some in (rows, held))
    found = {}
    for (kernel, gpu, words), some in groups.items():
        every = in_finals if some[0].by_finals else timed
        every = every[every["kernel"] == kernel]
        extents = {one.extent for one in some}
        here = every[(every["gpu"] == gpu) & (every["words"] == words) & every["extent"].isin(extents)]
        chosen = set(leading(kernel, every, here)["extent"])
        found[kernel, gpu, words] = [one for one in some if one.extent in chosen]
    return found


def _in_common(groups: Groups) -> Groups:
    """Return the problems that all GPUs have. A GPU with none of them is left out. A CPU keeps its own."""
    extents = {place: {one.extent for one in some} for place, some in groups.items()}
    shared: dict[tuple[str, str], set[str]] = {}
    for (kernel, gpu, words), here in sorted(extents.items(), key=lambda one: (-len(one[1]), one[0])):
        if not gpu.startswith("cpu-"):
            before = shared.setdefault((kernel, words), here)
            shared[kernel, words] = before & here or before
    found = {}
    for place, some in groups.items():
        kernel, gpu, words = place
        wanted = extents[place] if gpu.startswith("cpu-") else shared[kernel, words]
        if wanted <= extents[place]:
            found[place] = [one for one in some if one.extent in wanted]
    return found


def _summary(some: Sequence[HeadToHead], baseline: str) -> Summary:
    first = some[0]
    others = [one.others[baseline] for one in some]
    shares = [one.ceiling_fraction for one in some if one.ceiling_fraction is not None]
    return Summary(
        kernel=first.kernel,
        gpu=first.gpu,
        words=first.words,
        problems=tuple(one.extent for one in some),
        by_finals=first.by_finals,
        speedup=geometric_mean([one.ratio for one in others]),
        doubts=tuple(dict.fromkeys(one.doubt for one in others if one.doubt)),
        is_once=any(
            1 in (one.ours.rounds, other.time.rounds) for one, other in zip(some, others, strict=True)
        ),
        headline=first.headline,
        rate=geometric_mean([one.rate for one in some]),
        ceiling_fraction=geometric_mean(shares) if len(shares) == len(some) else None,
    )


def metrics(some: Iterable[Summary], rows: pd.DataFrame) -> dict[str, Any]:
    """Return the metrics: kernel -> machine -> words -> numbers, with the count of points by status."""
    found: dict[str, Any] = {}
    for (kernel, gpu), points in rows.groupby(["kernel", "gpu"]):
        count = points["status"].value_counts()
        by_status = {status: int(count.get(status, 0)) for status in get_args(Status)}
        found.setdefault(str(kernel), {})[str(gpu)] = {"points": by_status}
    for one in some:
        numbers: dict[str, Any] = {
            "own_speedup": float(f"{one.speedup:.6g}"),
            one.headline: float(f"{one.rate:.6g}"),
            "problems": list(one.problems),
        }
        if one.ceiling_fraction is not None:
            numbers["ceiling_fraction"] = float(f"{one.ceiling_fraction:.6g}")
        found[one.kernel][one.gpu][one.words or WORDLESS] = numbers
    return found


def headlines(some: Iterable[Summary]) -> dict[str, str]:
    """Return the JSON that ``dvc metrics`` shows, by machine.

    It has each kernel's mean speedup over its baseline at all problems of the overview. A kernel that only
    other machines measured has a dash, so that all files have the same names: ``dvc exp show`` prints a name
    that occurs in only one file without its machine.
    """
    groups: dict[str, dict[str, list[Summary]]] = {}
    for one in some:
        groups.setdefault(one.gpu, {}).setdefault(one.kernel, []).append(one)
    every = sorted({kernel for kernels in groups.values() for kernel in kernels})
    return {
        gpu: json.dumps({one: _mean(kernels[one]) if one in kernels else NONE for one in every}, indent=2)
        + "\n"
        for gpu, kernels in groups.items()
    }


def is_headline(text: str) -> bool:
    """Return whether a file's text has the form that ``headlines`` writes."""
    try:
        numbers = json.loads(text)
    except ValueError:
        return False
    return isinstance(numbers, dict) and all(
        isinstance(one, float) or one == NONE for one in numbers.values()
    )


def _mean(some: Sequence[Summary]) -> float:
    """Return the geometric mean of speedups, each weighted by its number of problems."""
    count = sum(len(one.problems) for one in some)
    return float(f"{math.exp(sum(len(one.problems) * math.log(one.speedup) for one in some) / count):.4g}")


STYLES = tuple(
    Style(f"machine-{place}", light, dark, list(SHAPES)[place % len(SHAPES)])
    for place, (light, dark) in enumerate(
        (
            *(("#0072b2", "#4aa8e8"), ("#d55e00", "#ff8433"), ("#009e73", "#2fd0a2")),
            *(("#cc79a7", "#e79ac6"), ("#e69f00", "#ffc445"), ("#57606a", "#a5aeb8")),
        )
    )
)
"""The styles of machines, in the order of the machines; colours after Okabe and Ito."""

WIDTH, TOP, LINE, MARK = 890, 30, 22, 14
"""The plot's width, the height of its titles, and the minimum heights of a line and of a mark."""

LEFT, RIGHT = (280, 560), (620, 820)
"""The ends of the axes of ratios and of shares; the margins beside them hold the marks' texts."""


def overview_plot(some: Sequence[Summary], machines: Mapping[str, str]) -> dict[str, Any]:
    """Return the positions and texts for the template; empty if there is nothing to show.

    ``machines`` are names by slug.
    """
    lines = sorted({(one.kernel, one.words) for one in some})
    if not lines:
        return {}
    here = [slug for slug in machines if slug in {one.gpu for one in some}]
    high = max(LINE, MARK * len(here) + 4)
    bottom = TOP + high * len(lines)
    ratios, shares = [one.speedup for one in some], [one.ceiling_fraction or 0 for one in some]
    least, most = min(0.8, *ratios), max(1.25, *ratios)
    of_ratio = _axis(LEFT, math.log2(least), math.log2(most))
    of_share = _axis(RIGHT, 0, max(1.0, *shares))
    known = {(one.kernel, one.words, one.gpu): one for one in some}
    marks, gaps = [], []
    for i, line in enumerate(lines):
        for place, slug in enumerate(here):
            y = round(TOP + high * (i + 0.5) + MARK * (place - (len(here) - 1) / 2), 1)
            one = known.get((*line, slug))
            if one is None:
                gaps.append((of_ratio(0), y, GAP))
                continue
            style = STYLES[place % len(STYLES)]
            look = {"style": style.name, "shape": SHAPES[style.marker][0], "y": y}
            text = speedup(one.speedup) + "!" * bool(one.doubts)
            ends = {"begin": of_ratio(0), "x": of_ratio(math.log2(one.speedup)), "text": text}
            marks.append(look | ends)
            if one.ceiling_fraction is not None:
                ends = {"begin": of_share(0), "x": of_share(one.ceiling_fraction)}
                marks.append(look | ends | {"text": percent(one.ceiling_fraction)})
    ticks = [(of_ratio(math.log2(one)), f"{one:g}") for one in RATIOS if least <= one <= most]
    ticks += [(of_share(one), f"{100 * one:.0f} %") for one in (0, 0.25, 0.5, 0.75, 1)]
    legend = [
        (10 + 280 * (i % 3), bottom + 44 + 18 * (i // 3), machines[slug], STYLES[i % len(STYLES)])
        for i, slug in enumerate(here)
    ]
    return {
        "description": f"overview of {', '.join(machines.values())}",
        "width": WIDTH,
        "height": bottom + 36 + 18 * math.ceil(len(here) / 3),
        "top": TOP - 6,
        "bottom": bottom,
        "titles": [(LEFT[0], "times as fast as the baseline"), (RIGHT[0], "share of the measured ceiling")],
        "names_x": LEFT[0] - 45,
        "names": [(TOP + high * (i + 0.5) + 4, " ".join(filter(None, line))) for i, line in enumerate(lines)],
        "ticks": ticks,
        "ones": [of_ratio(0), of_share(1)],
        "marks": marks,
        "gaps": gaps,
        "legend": [(x, y, name, style.name, SHAPES[style.marker][0]) for x, y, name, style in legend],
    }


def _axis(ends: tuple[int, int], first: float, last: float) -> Callable[[float], float]:
    """Return a function from a value to its position on a linear axis."""
    begin, end = ends
    return lambda value: round(begin + (value - first) / (last - first) * (end - begin), 1)
