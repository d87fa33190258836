"""Runs with tags, params and metrics as plain values, independent of MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kernel_pipeline.records.base import digest

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
    """The content of one MLflow run."""

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
        """A digest of the content, of sixteen hex digits."""
        return digest({one.name: getattr(self, one.name) for one in fields(self)})

    def extended(self, tags: Mapping[str, str]) -> Run:
        """Return the same run with more tags."""
        return replace(self, tags={**self.tags, **tags})


@dataclass(frozen=True)
class RunFamily:
    """The runs of a ledger, an ad-hoc sweep or a comparison: a parent run and its children.

    ``search`` is an MLflow filter that finds the runs, and possibly others. ``files`` are the parent's
    artifacts by path. ``stays`` marks the runs of an ad-hoc sweep, which are never replaced.
    """

    points: int
    parent: Run
    children: tuple[Run, ...]
    search: str
    files: Mapping[str, Path] = field(default_factory=dict)
    stays: bool = False

    @property
    def kernel(self) -> str:
        """The kernel's name."""
        return self.parent.params["kernel"]
