"""Leave out problems that are too large to be verified on a GPU, before any of their points is measured.

Each point of such a problem would cost seconds until it runs out of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace
from math import prod
from typing import Any

from kernel_pipeline import problems
from kernel_pipeline.loading import Loaded
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point

from ..points.plan import Plan

SMALL = 64
"""A problem fits if it moves fewer bytes than the memory has, divided by this number. For other problems the
need is computed, which imports torch."""


def within(planned: Plan, loaded: Loaded, memory: int, known: Container[Point]) -> Plan:
    """Return the plan without points of problems that do not fit into ``memory`` bytes.

    The dropped points are counted by reason in the plan. Points in ``known`` stay.
    """
    reasons: dict[Values, str | None] = {}
    left_out: Counter[tuple[str, str]] = Counter()
    kept = []
    for point in planned.points:
        if point.problem not in reasons:
            problem = problems.make(loaded.kernel.problem, point.problem)
            reasons[point.problem] = _against(loaded, problem, memory)
        why = reasons[point.problem]
        if why is None or point in known:
            kept.append(point)
        else:
            left_out[point.provider, why] += 1
    if not left_out:
        return planned
    return replace(planned, points=tuple(kept), refused=planned.refused + left_out)


def _against(loaded: Loaded, problem: Any, memory: int) -> str | None:
    if SMALL * loaded.kernel.work(problem).bytes < memory:
        return None
    needed = needs(loaded, problem)
    if needed <= memory:
        return None
    return f"too large to be verified here: about {needed / 1e9:.0f} GB > {memory / 1e9:.0f} GB"


def needs(loaded: Loaded, problem: Any) -> int:
    """Return the maximum number of bytes that the verifier and the worker hold together at a problem.

    In the order of the sum: inputs and float64 answers of two editions and of the audit's set; two shared
    sets; the reference's temporaries; the inputs and outputs of the worker and of a graph.
    """
    import torch

    inputs = sum(x.nbytes for x in loaded.inputs(problem, torch.device("meta"), 0))
    declared = loaded.outputs(problem)
    outputs = sum(prod(shape) * dtype.itemsize for shape, dtype in declared)
    wide = sum(prod(shape) * torch.float64.itemsize for shape, _ in declared)
    return 3 * (inputs + wide) + 2 * (inputs + outputs) + 2 * wide + 2 * (inputs + outputs)
