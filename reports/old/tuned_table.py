"""A table of tuned configurations on a terminal: a line for each kernel and side of the L2 cache."""

from __future__ import annotations

from collections import Counter

from rich import box
from rich.table import Table as Shown

from kernels.ops.table import Table, TunedKernel, TunedRegion
from pipeline.reporting.numbers import percent


def shown(found: Table) -> Shown:
    """The table as a command prints it."""
    made = Shown(title=f"tuned on {found.gpu}", box=box.SIMPLE_HEAD)
    for name in (
        "kernel",
        "problems",
        "of the L2 cache",
        "regret p50",
        "p90",
        "generalised",
        "else",
        "fastest",
    ):
        made.add_column(name, justify="right" if name in ("problems", "regret p50", "p90") else "left")
    for name, one in found.kernels.items():
        for region in one.regions:
            made.add_row(name, *line(one, region))
    return made


def line(one: TunedKernel, region: TunedRegion) -> list[str]:
    """What is said of a region: how many problems, the rule's regret, how much of it is generalised, what is
    called otherwise, and which providers were the fastest how often."""
    here = [each for each in one.problems if each.within_l2 == region.within_l2]
    fastest = Counter(one.configurations[each.best].provider for each in here)
    generalised = "never" if region.distance is None else f"{region.generalised} of {region.problems}"
    if region.generalised_p90 is not None:
        generalised += f", p90 {percent(region.generalised_p90)}"
    return [
        str(len(here)),
        "within" if region.within_l2 else "beyond",
        percent(region.regret_median),
        percent(region.regret_p90),
        generalised,
        ", ".join(dict.fromkeys(next(iter(labels)) for labels in region.fallback.values() if labels)),
        ", ".join(f"{provider} {count}" for provider, count in fastest.most_common()),
    ]
