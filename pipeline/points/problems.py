"""Problems of a kernel from what a workload or a command line names of them."""

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
"""What stands for a kernel's size dimensions together."""


@cache
def declared_variables(declared: Any) -> dict[str, Variable]:
    """The fields of a problem's or a parameters' dataclass; of one with thousands of configurations read
    once."""
    return variables(declared)


def make(declared: type, values: Mapping[str, Value]) -> Any:
    """A problem or parameters from values by name; what is the same as another and not given is filled in.

    Raises UserError for a name that is not declared, a value that can't be, and one that is missing.
    """
    known = declared_variables(declared)
    given: dict[str, Value] = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{name}: {declared.__name__} has {', '.join(known) or 'nothing'}.")
        given[name] = checked(known[name], value)
    for name, variable in known.items():
        if name in given:
            continue
        if variable.same_as is not None:
            given[name] = given[variable.same_as]
        elif variable.default is None:
            raise UserError(f"{name} is missing: {declared.__name__} needs a value of it.")
        else:
            given[name] = variable.default
    return declared(**given)


def checked(variable: Variable, value: object) -> Value:
    """The value, if it may be. Raises UserError."""
    try:
        return variable.check(value)
    except ValueError as error:
        raise UserError(f"{variable.name}: {error}.") from error


def values_of(made: Any) -> Values:
    """The values of a problem or of parameters, by name in their declared order."""
    kind: Any = type(made)
    return Values({} if made is None else {name: getattr(made, name) for name in declared_variables(kind)})


def identity_of(problem: Any) -> Values:
    """The values that a point names a problem by: all but those of dimensions that are left out at their
    default."""
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
    """Whether the kernel has a provider, a problem and parameters as a point's; those of an older row may be
    gone."""
    try:
        provider = kernel.provider(point.provider)
        problem = make(kernel.problem, point.problem)
        made = make(provider.parameters, point.parameters) if provider.parameters else None
    except (KeyError, UserError):
        return False
    return (identity_of(problem), values_of(made)) == (point.problem, point.parameters)


def of_workload(entry: Entry, workload: Workload, pins: Mapping[str, Sequence[Value]]) -> Iterator[Any]:
    """Each problem of a workload once, with the pinned values in place of its own.

    Raises UserError for a problem that lacks a dimension or has a value that can't be.
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
            # A problem that is written out yields to what is pinned only.
            pinned_size = of_size if SIZE in pins else {}
            pinned = {name: value for name, value in named.items() if name in pins}
            problem = make(kernel.problem, {**of_size, **named, **written, **pinned_size, **pinned})
            key = identity_of(problem)
            if key not in seen:
                seen.add(key)
                yield problem
