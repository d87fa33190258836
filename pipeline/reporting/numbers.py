"""Numbers as people read them, and tables as wide as they need."""

from __future__ import annotations

import math

from rich.console import Console, RenderableType

PIPE_WIDTH = 110
"""The width of output that is not a terminal's, in columns."""

GAP = "not measured"
"""Stands in a table of several machines for a missing number."""

RATES = {"gbps": "GB/s", "tflops": "TFLOP/s"}
"""The unit of each rate that people compare."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits and every whole one: 0.0123, 1.23, 12.3, 1234; "" for none."""
    if value is None or math.isnan(value):
        return ""
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def microseconds(value: float | None, is_bound: bool) -> str:
    """A time; an upper bound with ``<=`` before it."""
    return f"<= {number(value)}" if is_bound else number(value)


def percent(fraction: float | None) -> str:
    """A fraction of a ceiling in percent, to one decimal: 101.4 %, 95.4 %, 7.1 %, < 0.1 %."""
    if fraction is None or math.isnan(fraction):
        return ""
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 or not fraction else "< 0.1 %"


def speedup(value: float | None) -> str:
    """How many times as fast: 0.021, 0.98, 1.00, 1.31, 12.3, 123; "" for none."""
    if value is not None and 0.1 <= value < 9.995:
        return f"{value:.2f}"
    return number(value, 3 if value is None or value >= 1 else 2)


def print_wide(console: Console, what: RenderableType) -> None:
    """Print a table; into a pipe or a file with lines long enough for it."""
    width = console.width
    if not console.is_terminal:
        console.width = max(width, PIPE_WIDTH)
    try:
        console.print(what, highlight=False)
    finally:
        console.width = width
