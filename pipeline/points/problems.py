"""Make problems of a kernel from the values that a workload or a command line names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from kernel_pipeline.contract import Kernel, Value, Variable, variables
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Values
from kernel_pipeline.records.point import Point
from pipeline.points.catalog import Entry, Workload

SIZE = "size"
"""The name that stands for all of a kernel's size dimensions."""


@cache
def declared_variables(declared: Any) -> dict[str, Variable]:
    """Return the fields of a problem's or a parameters' dataclass. They are cached: a provider may have
    thousands of configurations."""
    return variables(declared)


def make(declared: type, values: Mapping[str, Value]) -> Any:
    """Make a problem or parameters from values by name. A value that is not given is that of ``same_as``, or
    the default.

    Raises UserError for a name that is not declared, a value that is not allowed, and a value that is
    missing.
    """
    known = declared_variables(declared)
    given: dict[str, Value] = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(
                f"{name} is not a field of {declared.__name__}, which has {', '.join(known) or 'none'}."
            )
        given[name] = checked(known[name], value)
    for name, variable in known.items():
        if name in given:
            continue
        if variable.same_as is not None:
            given[name] = given[variable.same_as]
        elif variable.default is None:
            raise UserError(f"{name} is missing: {declared.__name__} needs a value for it.")
        else:
            given[name] = variable.default
    return declared(**given)


def checked(variable: Variable, value: object) -> Value:
    """Return the value if the variable allows it. Raises UserError."""
    try:
        return variable.check(value)
    except ValueError as error:
        raise UserError(f"{variable.name}: {error}.") from error


def values_of(made: Any) -> Values:
    """Return the values of a problem or of parameters, by name in their declared order; none for None."""
    kind: Any = type(made)
    return Values({} if made is None else {name: getattr(made, name) for name in declared_variables(kind)})


def identity_of(problem: Any) -> Values:
    """Return the values that identify a problem in a point: all but those of dimensions that are omitted at
    their default."""
    kind: Any = type(problem)
    declared = declared_variables(kind)
    return Values(
        {
            name: value
            for name, value in values_of(problem).items()
            if not (declared[name].omit_default and value == declared[name].default)
        }
    )


def declares(kernel: Kernel, point: Point) -> bool:
    """Whether the kernel declares a point's provider, problem and parameters; those of an older row may be
    gone."""
    try:
        provider = kernel.provider(point.provider)
        problem = make(kernel.problem, point.problem)
        made = make(provider.parameters, point.parameters) if provider.parameters else None
    except (KeyError, UserError):
        return False
    return (identity_of(problem), values_of(made)) == (point.problem, point.parameters)


def of_workload(entry: Entry, workload: Workload, pins: Mapping[str, Sequence[Value]]) -> Iterator[Any]:
    """Yield each problem of a workload once, with the pinned values in place of its own.

    Raises UserError for a problem that lacks a dimension or has a value that is not allowed.
    """
    kernel = entry.loaded.kernel
    lists = {**workload.lists, **{name: pin for name, pin in pins.items() if name in kernel.dimensions()}}
    sizes: Sequence[Any] = pins.get(SIZE, workload.size or (None,))
    if SIZE in pins:
        lists = {name: some for name, some in lists.items() if name not in kernel.size or name in pins}
    if set(kernel.size) <= lists.keys():
        sizes = (None,)
    seen = set()
    for written in workload.problems or ({},):
        for size, *chosen in product(sizes, *lists.values()):
            of_size = {} if size is None else dict.fromkeys(kernel.size, size)
            named = dict(zip(lists, chosen, strict=True))
            # A problem that is written out overrides lists and sizes, and only pins override it.
            pinned_size = of_size if SIZE in pins else {}
            pinned = {name: value for name, value in named.items() if name in pins}
            problem = make(kernel.problem, {**of_size, **named, **written, **pinned_size, **pinned})
            key = identity_of(problem)
            if key not in seen:
                seen.add(key)
                yield problem
