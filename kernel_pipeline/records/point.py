"""Points: what is measured."""

from __future__ import annotations

from ..contract import shown
from .base import Record, Values
from .fields import Name


class Point(Record):
    """A point: a kernel, a problem, and a provider with values for its parameters.

    The worker, the ledger and the command line share its JSON form.
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
    """Return the sort key of points in ledgers, tables and plots: the words of a problem first, then
    numbers."""
    words = tuple(str(v) for v in point.problem.values() if not _is_number(v))
    numbers = tuple(v for v in point.problem.values() if _is_number(v))
    parameters = tuple((not _is_number(v), v if _is_number(v) else str(v)) for v in point.parameters.values())
    return point.kernel, point.provider, words, numbers, parameters


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
