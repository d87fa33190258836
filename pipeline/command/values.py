"""Types of options: a value or a list, a path, a seed, an architecture, a set of ncu."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from kernel_pipeline.declared import INTEGER_LIMIT, Value
from kernel_pipeline.errors import unknown

from ..inspection.ncu import SETS
from ..inspection.occupancy import LIMITS
from ..inspection.sanitizer import TOOLS
from ..points.catalog import as_list

Engine = Literal["ray", "ray-local"]
"""The way to join or to start a Ray cluster."""

LISTED = BeforeValidator(as_list)
"""Marks an option that takes a value or a list, which may also be written as ``a,b``."""


def _not_empty(value: Any) -> Any:
    if value == ():
        raise ValueError("is empty; write a value or a list of values")
    return value


NOT_EMPTY = AfterValidator(_not_empty)


@dataclass(frozen=True)
class AsWritten:
    """Marks an option whose text may hold blanks, commas and brackets."""


T = TypeVar("T")
Pin = Annotated[tuple[T, ...] | None, LISTED, NOT_EMPTY]
"""An option that takes one value, a list, or null for the kernel's own."""

Several = Annotated[tuple[T, ...], LISTED, NOT_EMPTY]
"""An option that takes one value or a list."""

Some = Annotated[tuple[Value, ...], LISTED, NOT_EMPTY]
"""Values of a kernel's dimension or parameter."""


def _share(value: Any) -> float:
    """Return 0.02 for 2%."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", str(value))
    if found is None or not float(found[1]):
        raise ValueError(f"write a percentage, as 2%, not {value}")
    return float(found[1]) / 100


Share = Annotated[float, BeforeValidator(_share)]
"""A percentage."""

SECONDS = {"s": 1, "m": 60, "h": 3600}


def _duration(value: Any) -> float | None:
    """Return the seconds of 90s, 10m or 1h."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", str(value))
    if found is None:
        raise ValueError(f"write seconds, minutes or hours, as 90s, 10m or 1h, not {value}")
    return float(found[1]) * SECONDS[found[2]]


Duration = Annotated[float | None, BeforeValidator(_duration)]
"""A time, in seconds; None: any."""


def _somewhere(value: Any) -> Any:
    if value == "":
        raise ValueError("is empty; write a path, or leave it out")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("has a null character, which no path can have")
    return value


Place = Annotated[Path, BeforeValidator(_somewhere)]
"""A file or folder. An empty path is refused, because it would mean the working directory."""


def _required(value: Any) -> Any:
    if value == "":
        raise ValueError("is empty; write a path")
    return _somewhere(value)


PathText = Annotated[str, BeforeValidator(_required)]
"""The path of a file or folder that a command needs, as text."""


def _size(value: Any) -> int:
    if type(value) is not int or not 0 < value <= INTEGER_LIMIT:
        raise ValueError(f"write a size, a whole number from 1 to 2**63 - 1, not {value}")
    return value


Size = Annotated[int, BeforeValidator(_size)]
"""A size of another format's problem."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]


def _architecture(value: Any) -> str:
    """Return ``90`` for 90, sm_90 and 9.0."""
    name = str(value).removeprefix("sm_").replace(".", "")
    if name not in LIMITS:
        raise ValueError(str(unknown("architecture", str(value), LIMITS)))
    return name


Architecture = Annotated[str, BeforeValidator(_architecture)]


def _sets(value: tuple[str, ...]) -> tuple[str, ...]:
    named = [name for name in value if name in SETS]
    if named and len(value) > 1:
        raise ValueError(f"'{named[0]}' is a whole set; write it alone, or a list of sections and metrics")
    for name in value:
        # A section may have any name, but a name close to a set's is a typing error.
        if name not in SETS and difflib.get_close_matches(name.lower(), SETS, n=1, cutoff=0.7):
            raise ValueError(str(unknown("set", name, SETS)))
        # ncu's own sections are in camel case, and its metrics have an underscore.
        if name not in SETS and not re.fullmatch(r"[A-Z]\w+|\w+[_:]\S+", name):
            raise ValueError(
                f"{str(unknown('set', name, SETS)).rstrip('.')}; a section is written as "
                "SpeedOfLight, and a metric as dram__bytes_read.sum"
            )
    return value


Sets = Annotated[tuple[str, ...], LISTED, NOT_EMPTY, AfterValidator(_sets)]
"""One of ncu's sets, or a list of its sections and metrics."""


def _tool(value: Any) -> str:
    if value not in TOOLS:
        raise ValueError(str(unknown("tool", str(value), TOOLS)))
    return str(value)


Tool = Annotated[str, BeforeValidator(_tool)]
