"""Text for terminals: what is printed is only ever shown, whoever wrote it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from pipeline.points.limits import visible_lines


class Terminal(Console):
    """A console that takes no text for markup, and on which control characters are shown as their escapes.

    A name in brackets is no style and a colon no emoji; what ``rich`` itself says to the terminal goes
    through.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of what is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible_lines(text), style, control)
