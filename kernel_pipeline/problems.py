"""Make problems of a kernel from the values that a workload or a command line names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .contract import Kernel
from .declared import Value, Variable, variables
from .errors import UserError
from .records.base import Values
from .records.point import Point


def make(declared: type, values: Mapping[str, Value]) -> Any:
    """Make a problem or parameters from values by name. A value that is not given comes from ``same_as``, or
    is the default.

    Raises UserError for a name that is not declared, a value that is not allowed, and a value that is
    missing.
    """
    known = variables(declared)
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
    return Values({} if made is None else {name: getattr(made, name) for name in variables(kind)})


def identity_of(problem: Any) -> Values:
    """Return the values that identify a problem in a point, without dimensions that are omitted at their
    default."""
    kind: Any = type(problem)
    declared = variables(kind)
    return Values(
        {
            name: value
            for name, value in values_of(problem).items()
            if not (declared[name].omit_default and value == declared[name].default)
        }
    )


def declares(kernel: Kernel, point: Point) -> bool:
    """Whether the kernel still declares the provider, problem and parameters of a point, which may come from
    an older row."""
    try:
        provider = kernel.provider(point.provider)
        problem = make(kernel.problem, point.problem)
        made = make(provider.parameters, point.parameters) if provider.parameters else None
    except (KeyError, UserError):
        return False
    return (identity_of(problem), values_of(made)) == (point.problem, point.parameters)
