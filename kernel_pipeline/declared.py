"""The variables that a kernel declares: dimensions of its problems, parameters of its providers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Value = int | bool | str | float | tuple[int, ...]
"""The type of a dimension's or a parameter's value."""

INTEGER_LIMIT = 2**63 - 1
"""The largest integer that a tensor's shape, a database or a data frame can hold."""


class ContractError(Exception):
    """An invalid declaration; the text is a sentence for the kernel's author."""


@dataclass(frozen=True)
class Variable:
    """A declared dimension of a problem, or a declared parameter of a provider.

    ``values`` is None if any integer from ``least`` on, any list of these, or any finite number is allowed.
    ``default`` is None for a required dimension and for a dimension that is ``same_as`` another. The ``type``
    of a list is tuple.
    """

    name: str
    type: type
    values: tuple[Value, ...] | None
    default: Value | None
    unit: str | None = None
    same_as: str | None = None
    omit_default: bool = False
    least: int = 1

    def check(self, value: object) -> Value:
        """Return the value if it is valid. Raises ValueError with a clause that names the valid values."""
        if self.type is bool and value in (0, 1) and not isinstance(value, str):
            value = bool(value)
        if self.type is float and type(value) in (int, str):
            with contextlib.suppress(ValueError, OverflowError):  # YAML reads 1e-5, without a dot, as a word
                value = float(typing.cast("str", value))
        if self.type is tuple:
            value = self._list(value)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if type(value) is not self.type or not is_finite:
            kinds = {int: "a whole number", bool: "true or false", str: "a word", float: "a finite number"}
            is_list = isinstance(value, (list, tuple))
            raise ValueError(f"must be {kinds[self.type]}, not {shown(value) if is_list else repr(value)}")
        if self.values is not None and value not in self.values:
            raise ValueError(f"must be {_either(self.values)}, not {shown(value)}")
        if self.values is None and self.type is int and typing.cast("int", value) < self.least:
            raise ValueError(f"must be at least {self.least}, not {value}")
        for one in value if isinstance(value, tuple) else (value,):
            if type(one) is int and one > INTEGER_LIMIT:
                raise ValueError(f"must be less than 2**63, not {one}")
        return typing.cast("Value", value)

    def _list(self, value: object) -> tuple[int, ...]:
        """Return a list of whole numbers as a tuple; one number is a list of one."""
        each = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if not each or any(type(one) is not int or one < self.least for one in each):
            raise ValueError(
                f"must be a list of whole numbers from {self.least} on, as [64,128], not {shown(value, repr)}"
            )
        return each

    def several(self, values: Sequence[Value]) -> Sequence[Value]:
        """Return the values that a sequence gives the variable: for a list, whole numbers together are one
        value."""
        is_one = self.type is tuple and all(type(value) is int for value in values)
        return (typing.cast("tuple[int, ...]", tuple(values)),) if is_one else values


def shown(value: object, of_word: Callable[[object], str] = str) -> str:
    """Return a value as it is written on a command line and in YAML. ``of_word`` writes words and numbers."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(shown(one, of_word) for one in value)}]"
    return str(value).lower() if isinstance(value, bool) else of_word(value)


def _either(values: Sequence[Value]) -> str:
    words = [shown(value) for value in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


@cache
def variables(declared: type) -> Mapping[str, Variable]:
    """Return the variables that a dataclass of dimensions or parameters declares, in their order; cached,
    since a provider may have thousands of configurations. Raises ContractError for a field that is not int,
    float, bool, str or a list, and for a str field without values."""
    hints = typing.get_type_hints(declared)
    found = {}
    for one in dataclasses.fields(declared):
        kind = hints[one.name]
        if isinstance(kind, types.UnionType):  # a ``same_as`` dimension is declared ``int | None``
            kind = next(member for member in typing.get_args(kind) if member is not type(None))
        if kind == tuple[int, ...]:
            kind = tuple
        if kind not in (int, float, bool, str, tuple):
            known = "int, float, bool, str or tuple[int, ...]"
            raise ContractError(f"{declared.__name__}.{one.name} must be {known}, not {kind}.")
        values = one.metadata.get("values")
        if kind is bool and values is None:
            values = (False, True)
        if kind is str and values is None and "same_as" not in one.metadata:
            raise ContractError(f"{declared.__name__}.{one.name} is a str: list its values with one_of(...).")
        default = None if one.default is dataclasses.MISSING else one.default
        found[one.name] = Variable(
            name=one.name,
            type=kind,
            values=values,
            default=default,
            unit=one.metadata.get("unit"),
            same_as=one.metadata.get("same_as"),
            omit_default=one.metadata.get("omit_default", False),
            least=one.metadata.get("least", 1),
        )
    return types.MappingProxyType(found)
