"""The content of a report, computed from the loaded results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from kernel_pipeline.records.environment import Environment

from ..store.comparisons import Comparison
from ..store.evidence import Evidence
from ..store.held_out import HeldOut
from ..store.results import Results, machines_first_gpus
from . import charts, gpus, overview
from .charts import Chart, Style
from .field import HeadToHead, head_to_heads, head_to_heads_of_finals, others_of, preferred
from .frames import against_baseline, best_configurations
from .gpus import CommonProblem, OtherSources
from .headlines import entry_of
from .loading import LoadedResults
from .losses import losses
from .others import Environments, OtherTimes
from .overview import Summary
from .plots import Machine, WorkloadPlot, dram_bytes, rooflines, workload_plots


@dataclass(frozen=True)
class About:
    """A kernel's declaration.

    ``own`` are the providers written in this repository to be fast. ``others`` are the providers that they
    are compared with in the section "Against the field".
    """

    kernel: str
    summary: str
    baseline: str
    own: frozenset[str]
    others: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Content:
    """The content of a report.

    machines:
        The machines' names by slug.
    best:
        Each provider's best configuration at each problem, with its speedup.
    field, losses:
        The problems at which our and other providers were timed, and the problems at which another is faster,
        worst first.
    summaries, side_by_side:
        The overview of each machine over its own problems, and of GPUs over common problems.
    common_problems, other_sources:
        GPUs at common problems, and the number of problems without a provider of the same source.
    plots, rooflines:
        Each kernel's charts.
    """

    loaded: LoadedResults
    evidence: Evidence
    comparisons: Sequence[Comparison]
    held_out: Sequence[HeldOut]
    unreadable: Sequence[str]
    machines: Mapping[str, str]
    about: Mapping[str, About]
    best: pd.DataFrame
    styles: Mapping[str, Style]
    field: Sequence[HeadToHead]
    losses: Sequence[HeadToHead]
    summaries: Sequence[Summary]
    side_by_side: Sequence[Summary]
    common_problems: Sequence[CommonProblem]
    other_sources: Sequence[OtherSources]
    plots: Mapping[str, Sequence[tuple[WorkloadPlot, Sequence[Chart]]]]
    rooflines: Mapping[str, Sequence[Chart]]

    @property
    def rows(self) -> pd.DataFrame:
        """The measurements that can be compared."""
        return self.loaded.rows

    @property
    def baselines(self) -> dict[str, str]:
        """The baseline of each kernel."""
        return {kernel: one.baseline for kernel, one in self.about.items()}


def compose(
    loaded: LoadedResults,
    evidence: Evidence,
    comparisons: Sequence[Comparison],
    held_out: Sequence[HeldOut],
    unreadable: Sequence[str],
) -> Content:
    """Compute the content of the report."""
    rows, found = loaded.rows, loaded.results
    names = machine_names(found)
    about = {kernel: describe(kernel, some) for kernel, some in loaded.providers(found.kernels).items()}
    baselines = {kernel: one.baseline for kernel, one in about.items()}
    best = against_baseline(best_configurations(rows), baselines)
    styles = charts.styles(rows["provider"])
    machines = [Machine(slug, name, found.ceilings.get(slug)) for slug, name in names.items()]
    others = {kernel: one.others for kernel, one in about.items()}
    times = OtherTimes(rows, loaded.every_final, others, Environments(loaded.runs, found.environments))
    swept = head_to_heads(rows, {kernel: one.own for kernel, one in about.items()}, times)
    by_finals = head_to_heads_of_finals(loaded.every_final, swept, times)
    field = preferred(swept, by_finals)
    common, other_sources = gpus.compared(rows, loaded.final_rows)
    plots, roofs = {}, {}
    for kernel in about:
        of_kernel = best[best["kernel"] == kernel]
        drawn = workload_plots(kernel, rows[rows["kernel"] == kernel], of_kernel)
        plots[kernel] = [(one, one.charts(machines, styles, baselines[kernel])) for one in drawn]
        counted = {one.gpu: dram_bytes(evidence.counters.get((kernel, one.gpu), [])) for one in machines}
        roofs[kernel] = rooflines(kernel, of_kernel, machines, counted, styles)
    return Content(
        loaded=loaded,
        evidence=evidence,
        comparisons=comparisons,
        held_out=[one for one in held_out if one.gpu in names],
        unreadable=unreadable,
        machines=names,
        about=about,
        best=best,
        styles=styles,
        field=field,
        losses=losses(swept, by_finals),
        summaries=overview.summaries(field, rows, loaded.final_rows, baselines, in_common=False),
        side_by_side=overview.summaries(field, rows, loaded.final_rows, baselines, in_common=True),
        common_problems=common,
        other_sources=other_sources,
        plots=plots,
        rooflines=roofs,
    )


def describe(kernel: str, measured: set[str]) -> About:
    """Return the kernel's declaration; for an unknown kernel, guess it from the measured providers."""
    entry = entry_of(kernel)
    others = others_of(kernel, measured)
    if entry is None:
        own = frozenset(name for name in measured if name.partition("_")[0] != "torch")
        return About(kernel, "Its folder is not in this commit.", "torch", own, others)
    declared = entry.loaded.kernel
    own = frozenset(provider.name for provider in declared.providers if provider.is_own)
    return About(kernel, entry.loaded.summary, declared.baseline, own, others)


def machine_names(results: Results) -> dict[str, str]:
    """Return the name of every machine with results, by slug: GPUs first, then CPUs."""
    known = results.environments
    slugs = machines_first_gpus([*results.gpus, *known, *results.ceilings])
    return {slug: _name(known[slug]) if slug in known else slug for slug in slugs}


def _name(environment: Environment) -> str:
    """Return a device's name without words that say nothing, such as (R), CPU or 16-Core."""
    noise = r"\((R|TM|C)\)|@.*|\b(CPU|Processor|\d+-Core)\b"
    return " ".join(re.sub(noise, " ", environment.name, flags=re.IGNORECASE).split())
