"""One thing to measure: a kernel, a problem, and a configuration of a provider."""

from __future__ import annotations

from ..contract import shown
from .base import Record, Values
from .fields import Name


class Point(Record):
    """A provider of a kernel at a problem, with values for its parameters.

    Its JSON form is the one that the worker, the ledger and the command line share.
    """

    kernel: Name
    provider: Name
    problem: Values
    parameters: Values = Values()

    def __str__(self) -> str:
        words = [
            f"{name}={shown(value)}" for name, value in (*self.problem.items(), *self.parameters.items())
        ]
        return f"{self.kernel}/{self.provider} {' '.join(words)}"


def order(point: Point) -> tuple[object, ...]:
    """The order of points in a ledger, a table and a plot: words of a problem first, then numbers."""
    words = tuple(str(v) for v in point.problem.values() if not _is_number(v))
    numbers = tuple(v for v in point.problem.values() if _is_number(v))
    parameters = tuple((not _is_number(v), v if _is_number(v) else str(v)) for v in point.parameters.values())
    return point.kernel, point.provider, words, numbers, parameters


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
