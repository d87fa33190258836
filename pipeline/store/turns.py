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
    """How accurate a rival's outputs are: the median and the largest distance of their elements from the
    float64 reference, in units in the last place, and whether two calls on the same inputs gave the same
    bits."""

    ulp_median: NotNegative
    ulp_worst: NotNegative
    repeats: bool


class Sustained(Record):
    """A rival's time after seconds of the same work, at the clock at which the device settles. ``joules`` is
    the device's energy per call, None where the device does not report it."""

    median_us: Microseconds
    samples_us: tuple[Microseconds, ...]
    sm_clock_mhz: Count | None = None
    power_w: NotNegative | None = None
    throttle: Text | None = None
    joules: NotNegative | None = None


class Turn(Record):
    """One rival in one round.

    side:
        The files that are measured: those of a commit, or ``tree`` for the working tree.
    key:
        The key of the measurement, as in a ledger. The same side and key mean the same rival.
    run:
        The run that measured it. The rivals of one round and one run were measured one after the other.
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
    """Return the turns of a file, in order; none if there is no file. A line that is no turn is skipped with
    a sentence to ``warn``."""
    sentence = "is not a turn of a round (torn or edited); skipped, the turn counts as not run."
    return json_lines.read(path, Turn.from_json, json_lines.warning(path, warn, sentence))
