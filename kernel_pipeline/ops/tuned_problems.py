"""The problems of a table of tuned configurations, as the rule between them takes them."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Return the problems of a table in the rule's form, without those that lack providers."""
    return [
        rule.Tuned(
            completed(kernel, each.problem),
            each.within_l2,
            each.near,
            frozenset(each.failed),
            # The fastest by finals may not be the fastest by the sweep, which the ratios are of.
            each.us / each.near.get(each.best, rule.MOST),
            each.baseline_us,
        )
        for each in compared(kernel, one)
        if not each.lacking
    ]


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
