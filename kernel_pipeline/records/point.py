"""Points: the units that are measured."""

from __future__ import annotations

from ..declared import shown
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
    """Return the sort key of points in ledgers, tables and plots: the words of a problem first, then numbers
    and lists of numbers."""
    words = tuple(str(v) for v in point.problem.values() if not (_is_number(v) or isinstance(v, tuple)))
    lists = (v if isinstance(v, tuple) else (v,) for v in point.problem.values())
    numbers = tuple(v for v in lists if _is_number(v[0]))
    parameters = tuple((not _is_number(v), v if _is_number(v) else str(v)) for v in point.parameters.values())
    return point.kernel, point.provider, words, numbers, parameters


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
