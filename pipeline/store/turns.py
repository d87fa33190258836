"""Turns of rounds: the outcome of each candidate in each round, one JSON line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernel_pipeline import files, json_lines
from kernel_pipeline.records.base import Record
from kernel_pipeline.records.fields import Count, Microseconds, NotNegative, Text
from kernel_pipeline.records.measurement import Outcome, Timing
from kernel_pipeline.records.point import Point


class Accuracy(Record):
    """How right a rival's outputs are: the distance of their elements from the float64 reference in units in
    the last place, the median and the largest; and whether two calls on the same inputs gave the same
    bits."""

    ulp_median: NotNegative
    ulp_worst: NotNegative
    repeats: bool


class Sustained(Record):
    """A rival's time after seconds of the same work, at the clock at which the device settles. ``joules`` are
    the device's for a call, None where it does not tell."""

    median_us: Microseconds
    samples_us: tuple[Microseconds, ...]
    sm_clock_mhz: Count | None = None
    power_w: NotNegative | None = None
    throttle: Text | None = None
    joules: NotNegative | None = None


class Turn(Record):
    """One rival in one round.

    side:
        Whose files it is of: a commit, ``tree`` for the working tree.
    key:
        The measurement's, as in a ledger: with the same side and key it is the same rival.
    run:
        The invocation that measured it. Rivals of one round that are of one run were measured one after the
        other.
    accuracy, sustained:
        What only finals ask for.
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
        """The timing, if it is to be trusted."""
        state = self.outcome.state
        return None if state is not None and not state.valid else self.outcome.timing


def append(path: Path, turn: Turn) -> None:
    """Add a turn, and make sure that it is on the disk. Raises UserError when it can't be written."""
    files.append(path, turn.line())


def read(path: Path, warn: Callable[[str], None]) -> list[Turn]:
    """The turns of a file, in its order; none if there is no file. A line that is none is skipped with a
    sentence to ``warn``."""
    sentence = "is no turn of a round (torn or edited); skipped, it counts as not run."
    return json_lines.read(path, Turn.from_json, json_lines.warning(path, warn, sentence))
