"""Points in words: a configuration as ``1024x8w``, a problem as ``4096`` or ``rows=37 columns=4096``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from kernel_pipeline import loading
from kernel_pipeline.contract import Kernel
from kernel_pipeline.declared import Value, Variable, shown
from kernel_pipeline.errors import UserError, unknown
from kernel_pipeline.records.point import Point

from .catalog import Entry

JOIN = "x"
"""The separator of values in a short configuration."""


def plural(count: int, word: str) -> str:
    """Return a number with its noun: ``1 point``, ``2 points``."""
    return f"{count} {word}{'s' * (count != 1)}"


def points(count: int) -> str:
    """Return a number of points in words."""
    return plural(count, "point")


def configuration(point: Point) -> str:
    """Write a point's parameters: ``1024x8w`` for parameters with units, ``name=value`` for the others.
    Parameters that are omitted at their default are left out; the text is empty if there are none."""
    declared = _parameters(point.kernel, point.provider)
    parameters = {
        name: value
        for name, value in point.parameters.items()
        if name not in declared or not declared[name].omit_default or value != declared[name].default
    }
    short = JOIN.join(
        f"{shown(value)}{declared[name].unit}"
        for name, value in parameters.items()
        if name in declared and declared[name].unit is not None
    )
    named = [
        f"{name}={shown(value)}"
        for name, value in parameters.items()
        if name not in declared or declared[name].unit is None
    ]
    return ",".join(filter(None, [short, *named]))


def label(point: Point) -> str:
    """Write a point's provider and configuration: ``triton_online 1024x8w``."""
    return f"{point.provider} {configuration(point)}".rstrip()


def extent(point: Point) -> str:
    """Write the numbers of a problem: ``4096`` if its size sets all dimensions, else its size and the
    dimensions that differ from their defaults: ``rows=37 columns=4096``."""
    return _extent(point.kernel, tuple(point.problem.items()))


@cache
def _extent(kernel: str, problem: tuple[tuple[str, Value], ...]) -> str:
    numbers = {
        name: value
        for name, value in problem
        if isinstance(value, (int, tuple)) and not isinstance(value, bool)
    }
    declared = _kernel(kernel)
    if declared is None:
        return " ".join(f"{name}={shown(value)}" for name, value in numbers.items())
    dimensions = declared.dimensions()
    rest = {
        name: value
        for name, value in numbers.items()
        if name not in declared.size and not _is_default(dimensions.get(name), value, numbers)
    }
    sizes = {numbers.get(name) for name in declared.size}
    if not rest and len(sizes) == 1:
        return str(sizes.pop())
    return " ".join(
        f"{name}={shown(value)}" for name, value in numbers.items() if name in rest or name in declared.size
    )


def words(point: Point) -> str:
    """Write the words of a problem, its dtype first: ``bfloat16``, ``float32 tf32``, ``bfloat16 causal``,
    ``float32 eps=0.25``."""
    return _words(point.kernel, tuple(point.problem.items()))


@cache
def _words(kernel: str, problem: tuple[tuple[str, Value], ...]) -> str:
    declared = _kernel(kernel)
    dimensions = {} if declared is None else declared.dimensions()
    found: list[str] = []
    for name, value in problem:
        if isinstance(value, bool):
            if value:
                found.append(name)
        elif isinstance(value, str) and (not found or not _is_default(dimensions.get(name), value, {})):
            found.append(value)
    reals = [
        f"{name}={value}"
        for name, value in problem
        if isinstance(value, float) and not _is_default(dimensions.get(name), value, {})
    ]
    return " ".join(found + reals)


def _is_default(variable: Variable | None, value: Value, others: Mapping[str, Value]) -> bool:
    if variable is None:
        return False
    default = others.get(variable.same_as) if variable.same_as else variable.default
    return value == default


def title(point: Point) -> str:
    """Write a point for a table: ``triton_online 1024x8w float32 4096``."""
    return " ".join(filter(None, [label(point), words(point), extent(point)]))


def file_name(point: Point) -> str:
    """Write a point as one word for a file's name: ``triton_online-float32-1024x8w-4096``."""
    parts = [point.provider, words(point), configuration(point), extent(point)]
    return re.sub(r"[^\w.=+-]+", "-", "-".join(filter(None, parts)))


@cache
def _kernel(name: str) -> Kernel | None:
    """Return a kernel's declaration, None if there is none: results may belong to kernels that no longer
    exist."""
    try:
        return loading.load(name).kernel
    except Exception:  # an author's file may raise anything; results are shown all the same
        return next((one.kernel for one in loading.known() if one.name == name), None)


@cache
def _parameters(kernel: str, provider: str) -> Mapping[str, Variable]:
    declared = _kernel(kernel)
    try:
        return {} if declared is None else declared.provider(provider).variables()
    except KeyError:
        return {}


@dataclass(frozen=True)
class Variant:
    """The values that a variant's text pins, such as ``triton_online/1024x8w/bfloat16``."""

    text: str
    provider: str
    pins: Mapping[str, tuple[Value, ...]]

    @classmethod
    def read(cls, text: str, entry: Entry) -> Variant:
        """Read ``PROVIDER/WORD/...``: a word is a configuration (``1024x8w``, ``block_size=1024``), a value
        of one of the problem's words (``bfloat16``), a size (``4096``), or a dimension (``rows=37``).

        Raises UserError for an unknown provider and for a word that is none of these; ``plan`` checks the
        values. If a configuration leaves out a parameter that labels omit, the parameter has its default.
        """
        name, *rest = [word.strip() for word in text.split("/")]
        kernel = entry.loaded.kernel
        known = {provider.name: provider for provider in kernel.providers}
        if name not in known:
            raise unknown(f"provider of {entry.name}", name, known)
        pins: dict[str, tuple[Value, ...]] = {}
        parameters = known[name].variables()
        for word in rest:
            found = _pinned(word, kernel, parameters)
            if not found:
                raise UserError(
                    f"can't read '{word}' in '{text}': write a configuration ({_example(parameters)}), a "
                    "size (4096), DIMENSION=VALUE, or a word of the problem (float32)."
                )
            pins |= {one: (value,) for one, value in found.items()}
        if pins.keys() & parameters.keys():
            omitted = {one.name: one.default for one in parameters.values() if one.omit_default}
            pins = {one: (value,) for one, value in omitted.items() if value is not None} | pins
        return cls(text, name, pins)


def _pinned(word: str, kernel: Kernel, parameters: Mapping[str, Variable]) -> dict[str, Value]:
    """Return the values that a word pins, none for a word that can't be read."""
    dimensions = kernel.dimensions()
    if word.isdigit() and not _short(word, parameters):
        return {"size": int(word)}
    for name, variable in dimensions.items():
        if variable.type is str and word in (variable.values or ()):
            return {name: word}
        if variable.type is bool and word == name:
            return {name: True}
    found: dict[str, Value] = {}
    for part in re.split(r",(?![^[]*\])", word):
        name, equals, text = part.partition("=")
        if equals and (known := {**dimensions, **parameters}.get(name)):
            found[name] = _value(text, known)
        elif short := _short(part, parameters):
            found |= short
        else:
            return {}
    return found


def _short(word: str, parameters: Mapping[str, Variable]) -> dict[str, Value]:
    """Read ``1024x8w`` by the parameters' units. Values without a unit go in order to the parameters whose
    unit is empty."""
    plain = [name for name, one in parameters.items() if one.unit == ""]
    units = {one.unit: name for name, one in parameters.items() if one.unit}
    found: dict[str, Value] = {}
    parts: Sequence[str] = word.split(JOIN)
    if all(part.isdigit() for part in parts) and len(parts) < 2:
        return {}  # a number alone is a size
    for part in parts:
        match = re.fullmatch(r"(\d+)([a-z]*)", part)
        if match is None:
            return {}
        if match[2]:
            if match[2] not in units:
                return {}
            found[units[match[2]]] = int(match[1])
        elif plain:
            found[plain.pop(0)] = int(match[1])
        else:
            return {}
    return found


def _value(text: str, variable: Variable) -> Value:
    if variable.type is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if variable.type is float:
        with suppress(ValueError):
            return float(text)
    if variable.type is tuple and re.fullmatch(r"\[\d+(,\d+)*\]", text):
        return tuple(map(int, text[1:-1].split(",")))
    return int(text) if variable.type is int and text.isdigit() else text


def _example(parameters: Mapping[str, Variable]) -> str:
    units = [f"{one.default}{one.unit}" for one in parameters.values() if one.unit is not None]
    names = [
        f"{name}={shown(one.default)}"
        for name, one in parameters.items()
        if one.unit is None and not one.omit_default
    ]
    return ",".join(filter(None, [JOIN.join(units), *names])) or "none: it has no parameters"
