"""A console that shows any text unchanged, and progress as bars on a terminal or lines in a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Lines
from rich.segment import Segment

from kernel_pipeline.records.fields import visible_lines

LINE_EVERY_S = 10.0


class Terminal(Console):
    """A console without markup and emoji that shows control characters in a text as escapes.

    The control sequences of ``rich`` itself are printed unchanged.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments to print."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible_lines(text), style, control)


class Bars:
    """The progress bars of all concurrent work on a terminal. A context manager."""

    def __init__(self, console: Console) -> None:
        self.lines = Lines(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[step]}", style="dim", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self.lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.stop()


class Progress:
    """The progress of a loop of ``total`` steps; ``expect`` adds further steps. A context manager.

    Args:
        bars: the bars shared with concurrent work; None if there is none.
        devices: the devices that share the steps. If there are several, each has its own line.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        total: int = 0,
        bars: Bars | None = None,
        devices: Sequence[object] = (),
    ) -> None:
        self.console = console
        self.title = title
        self.total = total
        self.done = 0
        self._spoke = monotonic()
        self._bars = Bars(console) if bars is None else bars
        self._is_own = bars is None
        self._lines = self._bars.lines
        self._task = self._lines.add_task(title, total=total, step="")
        several = devices if len(devices) > 1 else ()
        self._of = {str(one): self._lines.add_task(f"  {one}", total=None, step="") for one in several}

    def advance(self, step: str, best: str = "", device: object = None) -> None:
        """Count a step of a device as done. A step beyond the total raises the total.

        ``best`` is a text on the best configuration that a search has found so far.
        """
        self.done += 1
        if self.done > self.total:
            self.expect(1)
        own = self._of.get(str(device))
        if own is not None:
            self._lines.update(own, advance=1, step=step)
        self._lines.update(self._task, advance=1, step=best or ("" if self._of else step))
        if not self.console.is_terminal and monotonic() - self._spoke > LINE_EVERY_S:
            self._spoke = monotonic()
            line = "; ".join(filter(None, [f"{self.title}: {self.done} of {self.total}", best]))
            self.console.print(line, highlight=False, soft_wrap=True)

    def expect(self, more: int) -> None:
        """Add steps to the total."""
        self.total += more
        self._lines.update(self._task, total=self.total)

    def __enter__(self) -> Self:
        if self._is_own:
            self._bars.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for task in (self._task, *self._of.values()):
            self._lines.remove_task(task)
        if self._is_own:
            self._bars.__exit__()
