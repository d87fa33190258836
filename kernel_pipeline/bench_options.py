"""Check the options of ``bench``, ``check`` and ``compare`` before anything is timed."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Real
from typing import Any

from .arguments import BenchError
from .contract import Tolerance


def check_seconds(seconds: Any) -> None:
    """Raise BenchError unless this is a time in seconds."""
    if not (_is_number(seconds) and seconds > 0):
        raise BenchError(f"seconds={_shown(seconds)}: write a number above 0, such as seconds=0.1.")


def check_margin(margin: Any) -> None:
    """Raise BenchError unless this is a relative margin."""
    if not (_is_number(margin) and 0 <= margin < 1):
        raise BenchError(f"margin={_shown(margin)}: write a number from 0 to below 1, such as margin=0.01.")


def check_rounds(rounds: Any, most_rounds: Any) -> None:
    """Raise BenchError unless these are numbers of rounds."""
    if not all(type(one) is int for one in (rounds, most_rounds)) or not 2 <= rounds <= most_rounds:
        raise BenchError(
            "compare needs two rounds or more, and most_rounds must be at least rounds: write whole numbers."
        )


def check_tolerance(tolerance: Any) -> None:
    """Raise BenchError unless this is a tolerance, or None for the default."""
    if tolerance is None or isinstance(tolerance, Tolerance):
        return
    is_pair = isinstance(tolerance, (tuple, list)) and len(tolerance) == 2
    if not is_pair or not all(_is_number(one) and one >= 0 for one in tolerance):
        raise BenchError(
            f"tolerance={_shown(tolerance)}: write a pair (rtol, atol) of numbers from 0, such as "
            "tolerance=(1e-3, 1e-5)."
        )


def check_functions(*, are_optional: bool = True, **given: Any) -> None:
    """Raise BenchError unless each argument is a function, or None if they are optional."""
    for name, one in given.items():
        if not callable(one) and not (one is None and are_optional):
            raise BenchError(f"{name}={_shown(one)}: pass a function, which is called.")


def check_names(names: Iterable[Any]) -> None:
    """Raise BenchError unless all are names for a table."""
    for name in names:
        if not (isinstance(name, str) and name.strip() and name.isprintable()):
            raise BenchError(f"the name {_shown(name)} can't be used: write a non-empty string of one line.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
