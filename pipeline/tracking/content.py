"""What MLflow is to show, as plain values: runs with tags, params and metrics. Knows nothing of any store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pipeline.points.frozen import digest

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a description."""


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

    def extended(self, tags: Mapping[str, str], values: Iterable[Value] = ()) -> Run:
        """The same run with more tags and metrics."""
        return replace(self, tags={**self.tags, **tags}, values=(*self.values, *values))


@dataclass(frozen=True)
class RunFamily:
    """A ledger, an ad-hoc sweep or a comparison as MLflow shows it: a parent run and its children.

    ``search`` is the filter by which MLflow finds the runs, and perhaps others. ``files`` are the parent's
    artifacts, by their path there. ``stays`` tells a sweep's runs, which nothing replaces, from a ledger's.
    """

    points: int
    parent: Run
    children: tuple[Run, ...]
    search: str
    files: Mapping[str, Path] = field(default_factory=dict)
    stays: bool = False

    @property
    def kernel(self) -> str:
        """The kernel, whose name is its experiment's."""
        return self.parent.params["kernel"]
