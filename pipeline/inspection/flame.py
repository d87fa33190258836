"""Draw a flame graph of a profile with Python stacks, as a self-contained SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from zlib import crc32

from .launches import callers_first, calls_of, holds, spans

WIDTH, HEIGHT, LETTER = 1200, 18, 7
"""The width of the picture, the height of a bar, and the width of a letter, in pixels."""

STACKED = ("python_function", "cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
"""The categories of trace events that are on the host's stack."""


@dataclass
class Frame:
    """A function or operator on its callers' stack. ``us`` are its microseconds over all recorded calls,
    ``below`` the frames that it calls."""

    name: str
    us: float = 0.0
    below: dict[str, Frame] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """The height of the stack from this frame on, in frames."""
        return 1 + max((one.depth for one in self.below.values()), default=0)


def stacks(trace: Mapping[str, Any]) -> tuple[Frame, int]:
    """Return the merged stacks of the recorded calls, and the number of calls. The profiler's own work around
    a call and the synchronization after it are left out."""
    calls = calls_of(trace)
    root = Frame("a call")
    for call in calls:
        inside = [
            event
            for event in spans(trace, STACKED)
            if event["tid"] == call["tid"] and holds(call, event) and event is not call
        ]
        inside.sort(key=callers_first)
        for events in _by_outermost(inside):
            if any(event.get("cat") == "cpu_op" or "Launch" in event["name"] for event in events):
                _add(root, events)
    root.us = sum(one.us for one in root.below.values())
    return root, len(calls)


def svg(trace: Mapping[str, Any], title: str) -> bytes:
    """Return the flame graph of a trace. Each frame is a bar above its caller, with a width in proportion to
    its time. The tooltip of a bar has its full name and its time per call."""
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
    """The place of a frame: left edge and width in pixels, and level in the stack."""

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
    # Derive the colour from the name, so that a function has the same colour in every picture.
    hue = 10 + crc32(name.encode()) % 45
    said = escape(f"{name}: {bar.frame.us / calls:.3g} us per call, {bar.frame.us / total:.1%}")
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
    """Group events that are sorted by begin. Each group is an outermost event and the events within it."""
    group: list[Mapping[str, Any]] = []
    for event in events:
        if group and not holds(group[0], event):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _plain(name: str) -> str:
    """Remove addresses, which differ from run to run, from a frame's name."""
    return re.sub(r" at 0x[0-9a-f]+", "", name)
