"""Formatting of numbers, and printing of wide tables."""

from __future__ import annotations

import math

from rich.console import Console, RenderableType

PIPE_WIDTH = 110
"""The minimum width of output into a pipe or a file, in columns."""

MOST_WIDTH = 250
"""The maximum width of such output, unless the user's is larger."""

GAP = "not measured"
"""Stands for a missing number in a table of several machines."""

RATES = {"gbps": "GB/s", "tflops": "TFLOP/s"}
"""The units of the rates."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, but all integer digits: 0.0123, 1.23, 1234.

    Returns "" for None and NaN.
    """
    if value is None or math.isnan(value):
        return ""
    rounded = float(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def microseconds(value: float | None, is_bound: bool) -> str:
    """Return a time as text, with ``<=`` before an upper bound."""
    return f"<= {number(value)}" if is_bound else number(value)


def percent(fraction: float | None) -> str:
    """Return a fraction in percent with one decimal: 101.4 %, 95.4 %, 7.1 %, < 0.1 %; "" for None."""
    if fraction is None or math.isnan(fraction):
        return ""
    return f"{100 * fraction:.1f} %" if fraction >= 0.0005 or not fraction else "< 0.1 %"


def speedup(value: float | None) -> str:
    """Return a ratio as text: 0.021, 0.98, 1.00, 1.31, 12.3, 123; "" for None."""
    if value is not None and 0.1 <= value < 9.995:
        return f"{value:.2f}"
    return number(value, 3 if value is None or value >= 1 else 2)


def print_wide(console: Console, what: RenderableType) -> None:
    """Print a table; in a pipe or a file lines are at least ``PIPE_WIDTH`` wide, and break no word."""
    width = console.width
    if not console.is_terminal:
        unbroken = console.measure(what, options=console.options.update(max_width=MOST_WIDTH)).minimum
        console.width = max(width, PIPE_WIDTH, unbroken)
    try:
        console.print(what, highlight=False)
    finally:
        console.width = width
