"""Turns of rounds: the outcome of each candidate in each round, one JSON line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernel_pipeline import files, json_lines
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.fields import Count, Text
from kernel_pipeline.records.measurement import Accuracy, Outcome, Sustained, Timing
from kernel_pipeline.records.point import Point


class Turn(Record):
    """One candidate in one round.

    side:
        The files that are measured: a commit, or ``tree`` for the working tree.
    key:
        The key of the measurement, as in a ledger. The same side and key mean the same candidate.
    run:
        The run that measured it. The candidates of a round and run were measured one after the other.
    accuracy, sustained:
        Measured only for finals.
    """

    side: Text
    key: Text
    point: Point
    round: Count
    run: Text
    outcome: Outcome
    accuracy: Accuracy | None = None
    sustained: Sustained | None = None

    @property
    def timing(self) -> Timing | None:
        """The timing, None if the state of the device makes it invalid."""
        state = self.outcome.state
        return None if state is not None and not state.valid else self.outcome.timing


def append(path: Path, turn: Turn) -> None:
    """Append a turn, and make sure that it is on the disk. Raises UserError when it can't be written."""
    files.append(path, turn.line())


def read(path: Path, warn: Callable[[str], None]) -> list[Turn]:
    """Return the turns of a file, in order; none if there is no file. A line that is not a turn is skipped
    with a sentence to ``warn``."""
    sentence = "is not a turn of a round (incomplete or edited); skipped, the turn counts as not run."
    return json_lines.read(path, Turn.from_json, json_lines.warning(path, warn, sentence))
