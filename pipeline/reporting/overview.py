"""The overview: how our fastest does at each kernel and machine, in one number each, and at which problems.

One definition serves the report's overview, its metrics and, problem by problem, the table of the README: the
fastest provider written in this repository at a problem, beside the kernel's baseline; by finals where the
machine had any of the kernel, else by the sweeps. Several problems are shown by their geometric means.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any, get_args

import pandas as pd

from kernel_pipeline.records.measurement import Status
from pipeline.reporting.field import HeadToHead
from pipeline.reporting.workload_plots import leading

WORDLESS = "all"
"""What metrics call the problems of a kernel that has no words among its dimensions."""

MOST_NAMED = 3
"""Problems that are named one by one; of more the first and the last are."""


@dataclass(frozen=True)
class Summary:
    """Our fastest at a kernel's problems with the same words on one machine.

    ``speedup`` is the baseline's time over ours, ``rate`` what people compare, as ``headline`` names it, and
    ``ceiling_fraction`` its share of the machine's ceiling: geometric means over ``problems``, which are
    extents in their order. ``by_finals`` says whether these were measured side by side, ``doubts`` why the
    speedup is not to be trusted, and ``is_once`` whether any of it rests on one round."""

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
        """The problems: ``16384``, or ``7 problems, 256 to 16384``."""
        if len(self.problems) <= MOST_NAMED:
            return ", ".join(self.problems)
        return f"{len(self.problems)} problems, {self.problems[0]} to {self.problems[-1]}"


Groups = Mapping[tuple[str, str, str], Sequence[HeadToHead]]
"""Problems by kernel, machine and words."""


def summaries(
    field: Sequence[HeadToHead], rows: pd.DataFrame, held: pd.DataFrame, baselines: Mapping[str, str]
) -> list[Summary]:
    """By kernel, machine and words: of the problems of the kernel's first workload
    (``workload_plots.leading``) those at which ours and the baseline are known. ``rows`` are the
    measurements and ``held`` the finals as tables."""
    return _summarised(_leading(_known(field, rows, baselines), rows, held), baselines)


def side_by_side(
    field: Sequence[HeadToHead], rows: pd.DataFrame, held: pd.DataFrame, baselines: Mapping[str, str]
) -> list[Summary]:
    """The same of GPUs at the problems that they have in common: means over others can't be set beside each
    other. A GPU that has none in common with that of most problems is left out."""
    both = _in_common(_known(field, rows, baselines))
    return _summarised(_in_common(_leading(both, rows, held)), baselines)


def _known(field: Sequence[HeadToHead], rows: pd.DataFrame, baselines: Mapping[str, str]) -> Groups:
    """The problems at which ours and the baseline are known."""
    measured = set(rows[["kernel", "gpu"]].drop_duplicates().itertuples(index=False, name=None))
    groups: dict[tuple[str, str, str], list[HeadToHead]] = {}
    for one in field:
        is_measured = (one.kernel, one.gpu) in measured  # there may be finals alone
        if is_measured and baselines[one.kernel] in one.ratios and not one.unasked:
            groups.setdefault((one.kernel, one.gpu, one.words), []).append(one)
    return groups


def _leading(groups: Groups, rows: pd.DataFrame, held: pd.DataFrame) -> Groups:
    """Of these the problems of each kernel's first workload."""
    timed, timed_in_finals = (_places(some[some["status"] == "ok"]) for some in (rows, held))
    found = {}
    for (kernel, gpu, words), some in groups.items():
        every = timed_in_finals if some[0].by_finals else timed
        every = every[every["kernel"] == kernel]
        extents = {one.extent for one in some}
        here = every[(every["gpu"] == gpu) & (every["words"] == words) & every["extent"].isin(extents)]
        chosen = set(leading(kernel, every, here)["extent"])
        found[kernel, gpu, words] = [one for one in some if one.extent in chosen]
    return found


def _in_common(some: Groups) -> Groups:
    """Of each GPU's problems those that all have; one that has none of them is left out. A CPU keeps its own:
    it measures others."""
    extents = {place: {one.extent for one in those} for place, those in some.items()}
    shared: dict[tuple[str, str], set[str]] = {}
    for (kernel, gpu, words), here in sorted(extents.items(), key=lambda one: (-len(one[1]), one[0])):
        if not gpu.startswith("cpu-"):
            before = shared.setdefault((kernel, words), here)
            shared[kernel, words] = before & here or before
    found = {}
    for (kernel, gpu, words), those in some.items():
        wanted = shared.get((kernel, words), set())
        if gpu.startswith("cpu-"):
            found[kernel, gpu, words] = those
        elif wanted <= extents[kernel, gpu, words]:
            found[kernel, gpu, words] = [one for one in those if one.extent in wanted]
    return found


def _summarised(some: Groups, baselines: Mapping[str, str]) -> list[Summary]:
    """The summary of each group."""
    found = []
    for (kernel, gpu, words), those in some.items():
        reasons = [one.others[baselines[kernel]].doubt for one in those]
        shares = [one.ceiling_fraction for one in those if one.ceiling_fraction is not None]
        found.append(
            Summary(
                kernel=kernel,
                gpu=gpu,
                words=words,
                problems=tuple(one.extent for one in those),
                by_finals=those[0].by_finals,
                speedup=geometric_mean([one.ratios[baselines[kernel]] for one in those]),
                doubts=tuple(dict.fromkeys(filter(None, reasons))),
                is_once=any(
                    1 in (one.ours.rounds, one.others[baselines[kernel]].time.rounds) for one in those
                ),
                headline=those[0].headline,
                rate=geometric_mean([one.rate for one in those]),
                ceiling_fraction=geometric_mean(shares) if len(shares) == len(those) else None,
            )
        )
    return found


def _places(rows: pd.DataFrame) -> pd.DataFrame:
    """A row of each problem of each workload on each machine."""
    return rows.drop_duplicates(["kernel", "gpu", "words", "extent", "workload", "rank"])


def metrics(some: Iterable[Summary], rows: pd.DataFrame) -> dict[str, Any]:
    """Kernel -> machine -> words -> the numbers, and the kernel's points by status."""
    found: dict[str, Any] = {}
    for (kernel, gpu), points in rows.groupby(["kernel", "gpu"]):
        count = points["status"].value_counts()
        found.setdefault(str(kernel), {})[str(gpu)] = {
            "points": {status: int(count.get(status, 0)) for status in get_args(Status)}
        }
    for one in some:
        numbers: dict[str, Any] = {
            "own_speedup": _rounded(one.speedup),
            one.headline: _rounded(one.rate),
            "problems": list(one.problems),
        }
        if one.ceiling_fraction is not None:
            numbers["ceiling_fraction"] = _rounded(one.ceiling_fraction)
        found[one.kernel][one.gpu][one.words or WORDLESS] = numbers
    return found


NONE = "-"
"""As ``dvc metrics`` itself prints that there is no number."""


def headlines(some: Iterable[Summary]) -> dict[str, str]:
    """By machine what ``dvc metrics`` shows of it, as JSON: a number a kernel, how many times as fast as its
    baseline our fastest is, over all that the overview tells of it. Of a kernel that only other machines have
    measured it is a dash: a name in one file alone ``dvc exp show`` would print without the machine's."""
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
    """Whether a file's text is one of ``headlines``."""
    try:
        numbers = json.loads(text)
    except ValueError:
        return False
    return isinstance(numbers, dict) and all(
        isinstance(one, float) or one == NONE for one in numbers.values()
    )


def _mean(some: Sequence[Summary]) -> float:
    """The geometric mean of speedups, each as often as it has problems."""
    count = sum(len(one.problems) for one in some)
    return float(f"{math.exp(sum(len(one.problems) * math.log(one.speedup) for one in some) / count):.4g}")


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
