"""Draw a flame graph of a profile with Python stacks, as an SVG that a browser opens by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from zlib import crc32

from pipeline.inspection.launches import calls_of, holds

WIDTH, HEIGHT, LETTER = 1200, 18, 7
"""The picture's width, that of a bar's height, and of a letter in a bar, in pixels."""

STACKED = ("python_function", "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
"""The trace's categories of events on the host's stack."""


@dataclass
class Frame:
    """A function or operator below those that called it: its microseconds over all recorded calls."""

    name: str
    us: float = 0.0
    below: dict[str, Frame] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """How many frames are stacked from this one on."""
        return 1 + max((one.depth for one in self.below.values()), default=0)


def stacks(trace: Mapping[str, Any]) -> tuple[Frame, int]:
    """The merged stacks of the recorded calls, and the number of calls. The profiler's own work around a call
    and the wait for its end are left out."""
    spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    calls = calls_of(trace)
    root = Frame("a call")
    for call in calls:
        inside = [
            event
            for event in spans
            if _category(event) in STACKED
            and event["tid"] == call["tid"]
            and holds(call, event)
            and event is not call
        ]
        inside.sort(key=lambda event: (float(event["ts"]), -float(event["dur"])))
        for events in _by_outermost(inside):
            if any(_category(event) == "cpu_op" or "Launch" in event["name"] for event in events):
                _add(root, events)
    root.us = sum(one.us for one in root.below.values())
    return root, len(calls)


def svg(trace: Mapping[str, Any], title: str) -> bytes:
    """The flame graph: a bar a frame, as wide as its time, on the frame that called it. The pointer shows a
    bar's full name and its time a call."""
    root, calls = stacks(trace)
    bars = list(_bars(root, 0.0, WIDTH / max(root.us, 1e-9), 0))
    height = (root.depth + 2) * HEIGHT
    drawn = [_drawn(bar, height, max(calls, 1), max(root.us, 1e-9)) for bar in bars]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="monospace" font-size="11">'
    )
    caption = f'<text x="4" y="{HEIGHT - 5}">{escape(title)}: {calls} calls, {root.us:.4g} us</text>'
    ground = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, caption, *drawn, "</svg>\n"]).encode()


@dataclass(frozen=True)
class Bar:
    """Where a frame is drawn: its left edge and width in pixels, and its height in the stack."""

    frame: Frame
    left: float
    width: float
    level: int


def _bars(frame: Frame, left: float, scale: float, level: int) -> Iterator[Bar]:
    yield Bar(frame, left, frame.us * scale, level)
    for one in frame.below.values():
        yield from _bars(one, left, scale, level + 1)
        left += one.us * scale


def _drawn(bar: Bar, height: int, calls: int, total: float) -> str:
    top = height - (bar.level + 1) * HEIGHT
    letters = int(bar.width / LETTER)
    name = bar.frame.name
    text = name if len(name) <= letters else f"{name[: letters - 1]}…" * (letters > 3)
    # A name has the same colour in every picture.
    hue = 10 + crc32(name.encode()) % 45
    said = escape(f"{name}: {bar.frame.us / calls:.3g} us a call, {bar.frame.us / total:.1%}")
    return (
        f'<g><title>{said}</title><rect x="{bar.left:.2f}" y="{top}" width="{max(bar.width, 0.2):.2f}" '
        f'height="{HEIGHT - 1}" fill="hsl({hue} 85% 65%)"/>'
        f'<text x="{bar.left + 3:.2f}" y="{top + HEIGHT - 6}">{escape(text)}</text></g>'
    )


def _add(root: Frame, events: Sequence[Mapping[str, Any]]) -> None:
    """Add nested events to the frames below ``root``."""
    stack: list[tuple[Mapping[str, Any], Frame]] = []
    for event in events:
        while stack and not holds(stack[-1][0], event):
            stack.pop()
        parent = stack[-1][1] if stack else root
        name = _plain(str(event["name"]))
        frame = parent.below.setdefault(name, Frame(name))
        frame.us += float(event["dur"])
        stack.append((event, frame))


def _by_outermost(events: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Group events, sorted by begin: each outermost event with the events within it."""
    group: list[Mapping[str, Any]] = []
    for event in events:
        if group and not holds(group[0], event):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _plain(name: str) -> str:
    """A frame's name without addresses, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-f]+", "", name)


def _category(event: Mapping[str, Any]) -> str:
    return str(event.get("cat"))
