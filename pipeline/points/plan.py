"""The points of a sweep: each provider at every problem, in each of its configurations that fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from kernel_pipeline import problems, tracebacks
from kernel_pipeline.contract import Gpu, Kernel, Provider
from kernel_pipeline.declared import Value, Variable, shown
from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.problems import identity_of, values_of
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point

from . import written as written_problems
from .catalog import SIZE, Configurations, Entry, problems_of, several

Pins = Mapping[str, Sequence[Value]]
"""Values by the name of a dimension or parameter, in place of the values in the YAML."""


MOST_SIMULATED = 200_000
"""The maximum number of operations of a problem for Numba's simulator. The simulator runs each thread of a
block as a Python thread, and each barrier waits for all of these threads: a product of 46 x 46 matrices takes
seconds."""


@dataclass(frozen=True)
class Target:
    """The device for which points are planned: its kind, and for a GPU the properties that providers may
    check."""

    kind: str
    gpu: Gpu | None = None


@dataclass(frozen=True)
class Plan:
    """Points in order, with points that share inputs next to each other.

    ``workloads`` has the first workload that each point belongs to, ``refused`` the number of configurations
    left out by provider and reason.
    """

    points: tuple[Point, ...]
    workloads: Mapping[Point, str]
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def refusals(self) -> list[str]:
        """Return a line for each reason why configurations were left out. Reasons that differ only in numbers
        share a line."""
        kinds: dict[tuple[str, str], tuple[str, int, int]] = {}
        for (provider, reason), count in self.refused.items():
            kind = provider, re.sub(r"\d+", "#", reason)
            example, total, several = kinds.get(kind, (reason, 0, 0))
            kinds[kind] = example, total + count, several + 1
        return [
            f"{provider}: {total} configuration{'s' * (total != 1)} left out: "
            f"{'for example ' * (several > 1)}{example}"
            for (provider, _), (example, total, several) in kinds.items()
        ]


def plan(
    entry: Entry,
    preset: str,
    target: Target,
    pins: Pins | None = None,
    providers: Sequence[str] | None = None,
    every: bool = False,
    written: Path | None = None,
) -> Plan:
    """Return the points of a preset.

    ``pins`` replace values of the YAML. With ``every``, each parameter takes all values that its provider
    declares, in place of the values that the preset chooses. ``written`` names one of the kernel's workloads,
    or a file of problems. It replaces the preset's workloads, in the configurations of the groups that have
    that workload, else of the first group.

    A pin of a numeric dimension or of ``size`` leaves only the preset's first group: the problems of the
    others were chosen for their numbers. Raises UserError for names and values that the kernel does not have.
    """
    pins = checked_pins(entry, pins or {}, providers)
    groups = entry.groups(preset)
    dimensions = entry.loaded.kernel.dimensions()
    if any(name == SIZE or (name in dimensions and dimensions[name].type in (int, tuple)) for name in pins):
        groups = groups[:1]
    workloads = entry.config.workloads
    if written is not None:
        name, workload = written_problems.named(written, entry)
        workloads = {name: workload}
        of_it = [group for group in groups if name in group.workloads] or groups[:1]
        groups = tuple(group.model_copy(update={"workloads": (name,)}) for group in of_it)
    chosen = chosen_providers(entry, providers)
    refused: Counter[tuple[str, str]] = Counter()
    listed = cache(lambda: _listed(entry))
    sharing: dict[Any, dict[Point, str]] = {}
    for group in groups:
        configured: dict[str, Configurations] = {"*": "all"} if every else group.configurations
        here = [one for one in chosen if providers is not None or one.name not in group.without]
        for workload_name in group.workloads:
            for problem in problems_of(entry, workloads[workload_name], pins):
                identity = identity_of(problem)
                if every and identity in sharing:
                    continue  # another group has planned it in every configuration
                found = sharing.setdefault(identity, {})
                try:
                    entry.loaded.kernel.work(problem)  # fail here, not after a point is measured
                except Exception as error:  # whatever an author's function raises
                    raise _raised(entry, "work", error) from error
                home = workload_name
                if pins and written is None and _is_off(entry, workload_name, problem):
                    home = next((name for name, some in listed().items() if identity in some), home)
                for provider in here:
                    for point in _of_provider(entry, configured, provider, problem, pins, target, refused):
                        found.setdefault(point, home)
    planned = {point: name for points in sharing.values() for point, name in points.items()}
    return Plan(tuple(planned), planned, refused)


def _is_off(entry: Entry, name: str, problem: Any) -> bool:
    """Whether pins moved a problem off its workload's x axis, as ``m=16 size=8192`` does in a workload of
    square matrices. Such a problem belongs to the workload that lists it, if there is one."""
    workload = entry.config.workloads[name]
    together = {getattr(problem, one) for one in entry.loaded.kernel.size if one not in workload.lists}
    return workload.problems is None and len(together) > 1


def _listed(entry: Entry) -> dict[str, frozenset[Values]]:
    """Return the problems of each workload as the YAML lists them."""
    return {
        name: frozenset(map(identity_of, problems_of(entry, workload, {})))
        for name, workload in entry.config.workloads.items()
    }


def with_baseline(
    wanted: Plan,
    entry: Entry,
    preset: str,
    target: Target,
    pins: Pins,
    every: bool = False,
    written: Path | None = None,
) -> Plan:
    """Return a plan with the kernel's baseline added at its problems, if the chosen providers lack it. Tables
    compare with the baseline. A problem with only torch's own uncompiled calls gets no baseline, since a
    comparison of torch with itself has no use.
    """
    kernel = entry.loaded.kernel
    compared = {
        point.problem: point
        for point in wanted.points
        if (provider := kernel.provider(point.provider)).is_own or provider.package or provider.compiled
    }
    if not compared or any(point.provider == kernel.baseline for point in wanted.points):
        return wanted
    of_problems = {name: some for name, some in pins.items() if name == SIZE or name in kernel.dimensions()}
    baseline: dict[Values, list[Point]] = {}
    for point in plan(entry, preset, target, of_problems, [kernel.baseline], every, written).points:
        baseline.setdefault(point.problem, []).append(point)
    workloads: dict[Point, str] = {}
    for point, workload in wanted.workloads.items():
        beside = baseline.pop(point.problem, []) if point.problem in compared else []
        workloads |= dict.fromkeys(beside, workload)
        workloads[point] = workload
    return Plan(tuple(workloads), workloads, wanted.refused)


def chosen_providers(entry: Entry, names: Sequence[str] | None) -> list[Provider]:
    """Return the providers of these names, or all for None. Raises UserError for an unknown name."""
    known = {provider.name: provider for provider in entry.loaded.kernel.providers}
    for name in names or ():
        if name not in known:
            raise unknown(f"provider of {entry.name}", name, known)
    return [provider for provider in known.values() if names is None or provider.name in names]


def checked_pins(entry: Entry, pins: Pins, providers: Sequence[str] | None) -> dict[str, tuple[Value, ...]]:
    """Return the pins, each value checked against a dimension of the kernel or a parameter of a chosen
    provider.

    Raises one UserError for all mistakes, which lists the known names and values.
    """
    chosen = {one.name for one in chosen_providers(entry, providers)}
    found: dict[str, tuple[Value, ...]] = {}
    mistakes = []
    for name, values in pins.items():
        try:
            found[name] = _checked_pin(entry, name, values, chosen)
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError(" ".join(mistakes))
    return found


def _checked_pin(entry: Entry, name: str, values: Sequence[Value], chosen: set[str]) -> tuple[Value, ...]:
    kernel = entry.loaded.kernel
    dimensions = kernel.dimensions()
    if name == SIZE:
        of_size = _as_size(dimensions[kernel.size[0]])
        return tuple(problems.checked(of_size, value) for value in values)
    if name in dimensions:
        return tuple(problems.checked(dimensions[name], one) for one in dimensions[name].several(values))
    declaring = {one.name: one.variables()[name] for one in kernel.providers if name in one.variables()}
    if not declaring:
        raise unknown_name(entry, name)
    binding = [variable for who, variable in declaring.items() if who in chosen]
    if not binding:
        raise UserError(
            f"{name} is not a parameter of {', '.join(sorted(chosen))}; "
            f"{', '.join(declaring)} of {entry.name} {'has' if len(declaring) == 1 else 'have'} it."
        )
    return tuple(_value_of_any(binding, value) for value in values)


def _as_size(variable: Variable) -> Variable:
    return Variable(SIZE, variable.type, variable.values, None, least=variable.least)


def _value_of_any(binding: Iterable[Variable], value: object) -> Value:
    """Return the value if one of the variables takes it. Raises UserError as the first variable does
    otherwise."""
    mistakes = []
    for variable in binding:
        try:
            return problems.checked(variable, value)
        except UserError as error:
            mistakes.append(error)
    raise mistakes[0]


def names(entry: Entry) -> list[str]:
    """Return every name that can be pinned: ``size``, the dimensions, the providers' parameters."""
    parameters = (name for provider in entry.loaded.kernel.providers for name in provider.variables())
    return list(dict.fromkeys([SIZE, *entry.loaded.kernel.dimensions(), *parameters]))


def unknown_name(entry: Entry, name: str, options: Iterable[str] = ()) -> UserError:
    """Return the error for a name that the kernel lacks. It lists the kernel's names, and suggests the
    nearest of these and of a command's ``options``."""
    known = names(entry)
    text = str(unknown(f"option of {entry.name}", name, [*options, *known])).partition(" Known:")[0]
    dimensions = list(entry.loaded.kernel.dimensions())
    parameters = [one for one in known if one not in (SIZE, *dimensions)]
    return UserError(
        f"{text} Its dimensions: {', '.join(dimensions)} ({SIZE} stands for "
        f"{', '.join(entry.loaded.kernel.size)}); "
        f"its providers' parameters: {', '.join(parameters) or 'none'}."
    )


def _of_provider(
    entry: Entry,
    configured: Mapping[str, Configurations],
    provider: Provider,
    problem: Any,
    pins: Pins,
    target: Target,
    refused: Counter[tuple[str, str]],
) -> Iterator[Point]:
    """Yield the provider's points at a problem, and count the configurations that it refuses."""
    reason = unavailable(provider, target)
    for parameters in configurations(provider, configured, pins):
        try:
            against = reason or provider.fits(problem, parameters, target.gpu)
            against = against or _too_long(entry.loaded.kernel, provider, problem, target)
        except Exception as error:  # whatever an author's function raises
            raise _raised(entry, f"fits of {provider.name}", error) from error
        if against:
            refused[provider.name, against] += 1
        else:
            yield Point(
                kernel=entry.name,
                provider=provider.name,
                problem=identity_of(problem),
                parameters=values_of(parameters),
            )


def _raised(entry: Entry, what: str, error: Exception) -> UserError:
    return UserError(f"{what} of {entry.name} raised {tracebacks.described(error, [entry.loaded.folder])}")


def _too_long(kernel: Kernel, provider: Provider, problem: Any, target: Target) -> str | None:
    """Return the reason why Numba's simulator would take too long for a problem, or None."""
    if target.kind != "cpu" or provider.language != "numba":
        return None
    operations = kernel.work(kernel.interpreted(problem)).flops
    if operations <= MOST_SIMULATED:
        return None
    return f"too long for Numba's simulator: {operations} operations > {MOST_SIMULATED}"


def unavailable(provider: Provider, target: Target) -> str | None:
    """Return why a provider can't be measured on a device at all, None if it can."""
    if target.kind not in provider.devices and not (target.kind == "cpu" and provider.interpreted):
        return "needs a GPU" if target.kind == "cpu" else "runs on a CPU only"
    if not provider.is_installed:
        return f"needs {provider.requires}: pip install '{provider.requires}' -c constraints.txt"
    return provider.runs_on(target.gpu) if target.gpu is not None else None


def configurations(provider: Provider, configured: Mapping[str, Configurations], pins: Pins) -> Iterator[Any]:
    """Yield the parameters with which a provider is measured: the ``configured`` parameters of a preset's
    group, with pinned values in place of the group's. Yield None once for a provider without parameters."""
    if provider.parameters is None:
        yield None
        return
    wanted: Configurations = configured.get(provider.name, configured.get("*"))
    variables = provider.variables()
    found: dict[tuple[Value, ...], None] = {}
    for named in several(wanted) or ({},):
        lists = []
        for name, variable in variables.items():
            if name in pins:
                lists.append([value for value in pins[name] if _takes(variable, value)])
            elif wanted == "all":
                lists.append(list(variable.values or [_default(provider, variable)]))
            elif name in named:
                lists.append([value for value in named[name] if _takes(variable, value)])
            else:
                lists.append([_default(provider, variable)])
        found |= dict.fromkeys(product(*lists))
    for values in found:
        yield problems.make(provider.parameters, dict(zip(variables, values, strict=True)))


def _takes(variable: Variable, value: Value) -> bool:
    try:
        variable.check(value)
    except ValueError:
        return False
    return True


def _default(provider: Provider, variable: Variable) -> Value:
    if variable.default is None:
        raise UserError(f"{provider.name}: {variable.name} has no default; name its values.")
    return variable.default


def describe(variable: Variable) -> str:
    """Describe a dimension or parameter for a help text: its values or kind, and its default."""
    kinds = {float: "a number", tuple: f"a list of whole numbers from {variable.least} on, as [64,128]"}
    kind = kinds.get(variable.type, f"a whole number from {variable.least} on")
    values = " ".join(map(shown, variable.values)) if variable.values else kind
    default = ""
    if variable.same_as is not None:
        default = f" (default: the same as {variable.same_as})"
    elif variable.default is not None:
        default = f" (default {shown(variable.default)})"
    return values + default
