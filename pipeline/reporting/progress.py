"""Progress of long work: a bar on a terminal, a line now and then in a file."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_EVERY_S = 10.0


class Progress:
    """How far a loop of ``total`` steps is, and of those that are expected later. A context manager."""

    def __init__(self, console: Console, title: str, total: int = 0) -> None:
        self.console = console
        self.title = title
        self.total = total
        self.done = 0
        self._spoke = monotonic()
        self._bar = Bar(
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
        self._task = self._bar.add_task(title, total=total, step="")

    def advance(self, step: str, best: str = "") -> None:
        """A step is done; ``best`` is what a search has found so far. One more than were expected was
        expected then."""
        self.done += 1
        if self.done > self.total:
            self.expect(1)
        self._bar.update(self._task, advance=1, step=best or step)
        if not self.console.is_terminal and monotonic() - self._spoke > LINE_EVERY_S:
            self._spoke = monotonic()
            line = "; ".join(filter(None, [f"{self.title}: {self.done} of {self.total}", best]))
            self.console.print(line, highlight=False, soft_wrap=True)

    def expect(self, more: int) -> None:
        """So many more steps will come."""
        self.total += more
        self._bar.update(self._task, total=self.total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
