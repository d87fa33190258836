"""What MLflow is to show, as plain values: runs with tags, params and metrics. Knows nothing of any store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pipeline.points.frozen import digest


class Value(NamedTuple):
    """One metric at one step."""

    key: str
    value: float
    step: int
    at_ms: int


@dataclass(frozen=True)
class Run:
    """All that one MLflow run shows."""

    identity: str
    name: str
    failed: bool
    started_ms: int
    ended_ms: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    values: tuple[Value, ...]

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that change with anything the run shows."""
        return digest({one.name: getattr(self, one.name) for one in fields(self)})

    def with_tags(self, tags: Mapping[str, str]) -> Run:
        """The same run with more tags."""
        return replace(self, tags={**self.tags, **tags})

    def with_values(self, values: Iterable[Value]) -> Run:
        """The same run with more metrics."""
        return replace(self, values=(*self.values, *values))


@dataclass(frozen=True)
class LedgerRuns:
    """One ledger, or what one ad-hoc sweep measured, as MLflow shows it.

    ``which`` is the filter by which MLflow finds the runs, and perhaps others. ``files`` are the parent's
    artifacts, by their path there. ``stays`` tells a sweep's runs, which nothing replaces, from a ledger's.
    """

    points: int
    parent: Run
    children: tuple[Run, ...]
    which: str
    files: Mapping[str, Path] = field(default_factory=dict)
    stays: bool = False
