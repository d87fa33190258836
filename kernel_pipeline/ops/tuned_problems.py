"""The problems of a table of tuned configurations, as the rule between them takes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract import Kernel, Provider
from ..declared import Value
from . import rule
from .table import TunedKernel, TunedProblem


def completed(kernel: Kernel, problem: Mapping[str, Value]) -> dict[str, Value]:
    """Return a problem with missing dimensions filled in from their defaults."""
    found = dict(problem)
    for name, variable in kernel.dimensions().items():
        if name not in found:
            value = found.get(variable.same_as) if variable.same_as else variable.default
            if value is not None:
                found[name] = value
    return found


def takes_inputs(provider: Provider) -> bool:
    """Whether a provider takes a call's inputs as they are, not in another form."""
    return provider.reference is None and provider.prepare is None


def compared(kernel: Kernel, one: TunedKernel) -> list[TunedProblem]:
    """Return the problems of a table without those at which only the baseline was tried: they do not show
    that it is the fastest."""
    return [
        each
        for each in one.problems
        if each.runner_up or each.failed or one.configurations[each.best].provider != kernel.baseline
    ]


def tuned_of(kernel: Kernel, one: TunedKernel) -> list[rule.Tuned]:
    """Return the problems of a table in the rule's form, with estimates for the
    configurations that they lack."""
    some = compared(kernel, one)
    found = [
        rule.Tuned(
            completed(kernel, each.problem),
            each.within_l2,
            each.near,
            frozenset(each.failed),
            # The fastest by finals may not be the fastest by the sweep, which the ratios are of.
            each.us / each.near.get(each.best, rule.MOST),
            each.baseline_us,
        )
        for each in some
    ]
    return estimated(kernel, found, [each.lacking for each in some])


def has_steps(kernel: Kernel) -> bool:
    """Whether the kernel's providers declare their steps."""
    return any(one.steps is not None for one in kernel.providers)


def estimated(
    kernel: Kernel, some: Sequence[rule.Tuned], lacking: Sequence[Sequence[str]]
) -> list[rule.Tuned]:
    """Return problems with estimates for the configurations that they lack, by label: the geometric mean of
    the configuration's ratios at the comparable problems, on the same side of the cache, that don't lack it.
    With steps nothing is estimated, since times are predicted from the problems that have one."""
    if has_steps(kernel):
        return list(some)
    known: dict[tuple[str, bool, str], list[float]] = {}
    labels = {label for labels in lacking for label in labels}
    for one, lacks in zip(some, lacking, strict=True):
        for label in labels.difference(lacks, one.failed):
            ratio = min(one.near.get(label, rule.MOST), rule.MOST)
            known.setdefault((words_text(one.problem), one.within_l2, label), []).append(math.log(ratio))
    found = []
    for one, lacks in zip(some, lacking, strict=True):
        of = words_text(one.problem), one.within_l2
        ratios = {label: known[*of, label] for label in lacks if (*of, label) in known}
        means = {label: math.exp(math.fsum(logs) / len(logs)) for label, logs in ratios.items()}
        near = {label: mean for label, mean in means.items() if mean < rule.MOST}
        found.append(dataclasses.replace(one, near={**one.near, **near}))
    return found


def words_text(problem: Mapping[str, Value]) -> str:
    """Return the non-numeric dimensions of a problem as text: ``dtype=bfloat16``."""
    return " ".join(f"{name}={value}" for name, value in sorted(rule.words(problem).items()))


def made_parameters(provider: Provider, parameters: Mapping[str, Value]) -> Any:
    """Return a provider's parameters with the table's values; None for a provider without parameters. Raises
    ValueError for invalid values."""
    declared = provider.variables()
    if declared.keys() != parameters.keys():
        raise ValueError(f"its parameters are {', '.join(declared) or 'none'}")
    if provider.parameters is None:
        return None
    return provider.parameters(**{name: declared[name].check(value) for name, value in parameters.items()})


def is_within(kernel: Kernel, problem: Any, l2_bytes: int) -> bool:
    """Whether the bytes that a problem reads and writes fit the L2 cache."""
    return kernel.work(problem).bytes <= l2_bytes
