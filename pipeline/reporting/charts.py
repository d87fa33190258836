"""Charts as SVG: lines and marks over an x axis, each mark with its numbers as text.

A page draws charts in its own colours and without a script. The page's script only shows a mark's text beside
the pointer and hides charts that the reader deselects. A provider's colour always follows from its language.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

WIDTH, HEIGHT = 480, 290
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 26, 40
"""A chart's size and margins in SVG units; the margins hold the axes' texts."""

RATIOS = tuple(2.0**power for power in range(-7, 8))
"""The ticks of a logarithmic axis of ratios."""

HEADROOM = 1.13
"""The y axis ends at this factor above the highest value, to leave room for a limit's text."""

SHAPES = {
    "o": ("circle", "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0"),
    "s": ("box", "M-3.2-3.2H3.2V3.2H-3.2Z"),
    "^": ("up", "M0-4L4 3.4H-4Z"),
    "D": ("diamond", "M0-4.4L4.4 0L0 4.4L-4.4 0Z"),
    "v": ("down", "M0 4L4-3.4H-4Z"),
}
"""Names and paths of the markers, centred at the origin. A page defines each path once."""

FAMILIES: dict[str, tuple[tuple[str, str], ...]] = {
    "torch": (
        ("#0072b2", "#4aa8e8"),
        ("#56b4e9", "#a6dcff"),
        ("#1b3a6b", "#7c95d6"),
        ("#3f8f9f", "#5fb9c9"),
        ("#8295b5", "#b4c1da"),
    ),
    "triton": (("#d55e00", "#ff8433"), ("#e69f00", "#ffc445"), ("#8c2d04", "#d9795a")),
    "cuda": (("#009e73", "#2fd0a2"), ("#6fc3a0", "#a5ecd0"), ("#00594a", "#4f9c8b")),
    "cpp": (("#cc79a7", "#e79ac6"), ("#8e4585", "#bf7ab6")),
    "numba": (("#8a8f00", "#d3d94a"),),
    "": (("#57606a", "#a5aeb8"), ("#9aa2ab", "#d0d6dc"), ("#24292f", "#818b96")),
}
"""Colours on light and on dark by the first word of a provider's name. The palette is from Okabe and Ito,
whose hues most colour-blind people can distinguish. Within a family, lightness, marker and dashes differ
too."""

DASHES = ("", "10 3", "3 3", "12 3 3 3")


@dataclass(frozen=True)
class Style:
    """The marker and colour of a provider; ``name`` is the name of its colour in a page's style sheet."""

    name: str
    light: str
    dark: str
    marker: str
    dashes: str = ""


def styles(providers: Iterable[str]) -> dict[str, Style]:
    """Return a style for each provider, with the families in their fixed order."""
    by_family: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for provider in sorted(set(providers)):
        first = provider.split("_")[0]
        by_family[first if first in FAMILIES else ""].append(provider)
    found = {}
    for family, members in by_family.items():
        for i, provider in enumerate(members):
            place = i % len(FAMILIES[family])
            light, dark = FAMILIES[family][place]
            marker = list(SHAPES)[i % len(SHAPES)]
            found[provider] = Style(
                f"{family or 'other'}-{place}", light, dark, marker, DASHES[i % len(DASHES)]
            )
    return found


@dataclass(frozen=True)
class Mark:
    """A point of a line, and its numbers in words. The note below a chart says what ``hollow`` means."""

    x: float
    y: float
    text: str
    hollow: bool = False


@dataclass(frozen=True)
class Series:
    """Marks of one provider, joined by a line unless they are ``scattered``."""

    provider: str
    style: Style
    marks: Sequence[Mark]
    scattered: bool = False


@dataclass(frozen=True)
class Limit:
    """A ceiling: a dashed line through points, with a text at its first point."""

    points: Sequence[tuple[float, float]]
    text: str


@dataclass(frozen=True)
class Chart:
    """The series of a machine's problems with the same ``words`` over one x axis, and dashed limits.

    The x axis is logarithmic if all values are above 0, the y axis if ``is_log``.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    gpu: str
    words: str
    limits: Sequence[Limit] = ()
    is_log: bool = False
    x_ticks: Sequence[float] | None = None

    @cached_property
    def view(self) -> dict[str, Any]:
        """The positions and texts that the template draws."""
        marks = [mark for one in self.series for mark in one.marks]
        ends = [point for one in self.limits for point in one.points]
        xs = sorted({mark.x for mark in marks} | ({x for x, _ in ends} if self.x_ticks else set()))
        across = _Across(xs)
        down = _Down([*(mark.y for mark in marks), *(y for _, y in ends)], self.is_log)
        ticks = self.x_ticks or (_ticks(xs) if xs[0] > 0 else xs)
        limits = []
        for one in self.limits:
            points = [(across(x), down(y)) for x, y in one.points] if self.x_ticks else []
            points = points or [(LEFT, down(one.points[0][1])), (WIDTH - RIGHT, down(one.points[0][1]))]
            limits.append((_path(points), points[0][0] + 4, points[0][1] - 5, one.text))
        return {
            "title": self.title,
            "description": f"{self.title}: {self.y_label} against {self.x_label}",
            "gpu": self.gpu,
            "words": self.words,
            "x_label": self.x_label,
            "y_label": self.y_label,
            "frame": {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT}
            | {"top": TOP, "bottom": HEIGHT - BOTTOM},
            "x_ticks": [(across(x), f"{x:g}" if x < 1e5 else f"{x:.0f}") for x in ticks],
            "y_ticks": [(down(y), text) for y, text in zip(down.ticks, down.texts, strict=True)],
            "limits": limits,
            "lines": [
                {
                    "provider": one.provider,
                    "style": one.style.name,
                    "dashes": one.style.dashes,
                    "path": "" if one.scattered else _path([(across(m.x), down(m.y)) for m in one.marks]),
                    "shape": SHAPES[one.style.marker][0],
                    "marks": [
                        {"x": across(mark.x), "y": down(mark.y), "text": mark.text, "hollow": mark.hollow}
                        for mark in one.marks
                    ],
                }
                for one in self.series
            ],
        }


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


class _Across:
    """Maps x to a position: on a log2 axis if all values are above 0, else on a linear axis."""

    def __init__(self, ordered: Sequence[float]) -> None:
        self.log = ordered[0] > 0
        first, last = self._scaled(ordered[0]), self._scaled(ordered[-1])
        margin = 0.4 if self.log or first == last else 0.05 * (last - first)
        self.first, self.last = first - margin, last + margin

    def _scaled(self, x: float) -> float:
        return math.log2(x) if self.log else float(x)

    def __call__(self, x: float) -> float:
        share = (self._scaled(x) - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT))


class _Down:
    """Maps y to a position: on a linear axis from 0, or on a logarithmic axis."""

    def __init__(self, values: Sequence[float], is_log: bool) -> None:
        self.log = is_log and any(value > 0 for value in values)
        if self.log:
            first, last = min(value for value in values if value > 0) / 1.4, max(values)
            last *= (last / first) ** 0.08
            self.first, self.last = math.log10(first), math.log10(last)
            self.ticks = [10.0**power for power in range(math.ceil(self.first), math.floor(self.last) + 1)]
        else:
            self.first, self.last = 0.0, HEADROOM * max(values) or 1.0
            power = 10.0 ** math.floor(math.log10(self.last / 5))
            step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= self.last / 5)
            self.ticks = [step * place for place in range(int(self.last / step) + 1)]

    @property
    def texts(self) -> list[str]:
        """The ticks' texts: with the same number of decimals, except on a logarithmic axis."""
        shortest = [f"{tick:g}" for tick in self.ticks]
        digits = max((len(text.partition(".")[2]) for text in shortest), default=0)
        return shortest if self.log else [f"{tick:.{digits}f}" for tick in self.ticks]

    def __call__(self, y: float) -> float:
        scaled = math.log10(y) if self.log and y > 0 else self.first if self.log else y
        share = (scaled - self.first) / (self.last - self.first)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP))


def _ticks(ordered: Sequence[float]) -> list[float]:
    """Return the ticks of a log2 axis: as many of its values, given in ascending order, as stay legible."""
    apart = math.log2(ordered[-1] / ordered[0]) / 6
    ticks = [ordered[-1]]
    for value in reversed(ordered):
        if math.log2(ticks[-1] / value) >= max(apart, 0.4):
            ticks.append(value)
    return ticks
