"""What a publisher is asked to publish, and marks of what it left to another.

An SQLite store has one publisher at a time. Who finds another one there leaves a mark beside the store; the
other looks for marks before it ends, and publishes what they name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import escape
from pathlib import Path
from typing import Any, Self

from pipeline.store.files import write_atomically

PATHS = ("input", "runs", "reports", "artifacts")


@dataclass(frozen=True)
class Tracker:
    """What ``tracking=NAME`` and ``tracking.uri=URI`` say of the store; ``uri`` may hold a password."""

    name: str
    uri: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Files:
    """What is to be published: the ledgers below ``input`` with ``reports`` and ``artifacts``, and the
    records of ad-hoc sweeps in ``runs``; with either the comparisons that lie below it or beside it. None
    leaves a part out; ``kernel`` None is every kernel, ``device`` None every machine, and ``ids`` None every
    record."""

    input: Path | None = None
    runs: Path | None = None
    kernel: str | None = None
    reports: Path | None = None
    artifacts: Path | None = None
    ids: frozenset[str] | None = None
    device: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of ``python -m pipeline.publish`` that publish these files."""
        words = {"input": self.input, "runs": self.runs, "kernel": self.kernel}
        words |= {"reports": self.reports, "artifacts": self.artifacts, "device": self.device}
        return [
            f"{name}={'null' if value is None else value}"
            for name, value in words.items()
            if name not in ("kernel", "device") or value is not None
        ]

    def text(self) -> str:
        """The same as JSON, for a process in whatever folder."""
        fields: dict[str, Any] = asdict(self)
        fields |= {name: str(fields[name].absolute()) for name in PATHS if fields[name] is not None}
        return json.dumps(fields | {"ids": None if self.ids is None else sorted(self.ids)}, sort_keys=True)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """What ``text`` gave. Raises ValueError, TypeError or AttributeError for what it did not."""
        fields = json.loads(text)
        fields |= {name: Path(fields[name]) for name in PATHS if fields[name] is not None}
        return cls(**fields | {"ids": None if fields["ids"] is None else frozenset(fields["ids"])})


class Marks:
    """The marks beside an SQLite store, in files of their own; none beside another store."""

    def __init__(self, store: Path | None) -> None:
        self._store = store

    def leave(self, files: Files) -> Path:
        """Leave a mark. Raises UserError when it can't be written."""
        assert self._store is not None, "only an SQLite store has one publisher at a time"
        path = self._store.with_name(f"{self._store.name}.left-{uuid.uuid4().hex}.json")
        write_atomically(path, files.text().encode())
        return path

    def all(self) -> list[Path]:
        """Those that are there."""
        if self._store is None:
            return []
        return sorted(self._store.parent.glob(f"{escape(self._store.name)}.left-*.json"))

    def taken(self) -> Iterator[Files]:
        """What the marks name, until there are no more; equal ones once. A mark goes when what it names was
        published, so that one whose publisher is killed stays for the next."""
        while alike := self.all():
            text = alike[0].read_text()
            alike = [path for path in alike if path == alike[0] or path.read_text() == text]
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # it is nobody's mark
                yield Files.of_text(text)
            for path in alike:
                path.unlink(missing_ok=True)
