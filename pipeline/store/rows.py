"""Rows as lines: the only place where a row is split from the data that its run's rows share, and joined with
it.

A line holds the row's own data, without defaults and without derived values: the rate follows from the bytes,
the operations and the time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from kernel_pipeline import json_lines
from kernel_pipeline.errors import UserError
from kernel_pipeline.records.base import Record, ValidationError, digest
from kernel_pipeline.records.fields import Count, NotNegative, Text
from kernel_pipeline.records.measurement import Origin, Parts, Rate

from . import provenance
from .provenance import RunProvenance

R = TypeVar("R", bound=Record)

SHARED = {
    name for name in Origin.__struct_fields__ if name in {*RunProvenance.__struct_fields__, "device", "tool"}
}
"""The fields of a row's origin that are stored in the line of its run. The device is among them, but a row
also stores it if it differs from the run's."""

FOLLOWS = {"rate": {"gbps", "tflops"}, "parts": {"point", "settings", "measurement"}, "origin": SHARED}
"""The fields of each part of a row that its line leaves out, because they follow from the rest or are in the
run's line."""


class Worked(Record):
    """A row's stored rate: the bytes moved and operations computed, the ceiling that limits them, and the
    reached fraction of that ceiling."""

    bytes: Count
    flops: Count
    bound: Text | None = None
    ceiling_fraction: NotNegative | None = None

    def over(self, time_us: float) -> Rate:
        """Return the rate at a time in microseconds."""
        gbps, tflops = self.bytes / time_us / 1e3, self.flops / time_us / 1e6
        return Rate(gbps=gbps, tflops=tflops, **msgspec.structs.asdict(self))


class OwnParts(Record):
    """The parts of a row's key that follow neither from its run nor from its point."""

    source: Text
    environment: Text


class UnknownRunError(ValidationError):
    """A row names a run that has no line."""


def encode(row: Any) -> bytes:
    """Return the line of a measurement or a final."""
    origin: Origin = row.origin
    line = row.to_dict(defaults=False)
    for part, names in FOLLOWS.items():
        for name in names & line.get(part, {}).keys():
            del line[part][name]
    line |= {"run": origin.run, **line.pop("origin")}
    if origin.device != _usual(origin.gpu):
        line["device"] = origin.device
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _usual(gpu: str) -> str:
    """Return the device of most rows, which their lines leave out."""
    return "cpu" if gpu.startswith("cpu-") else "cuda:0"


@cache
def _form(kind: type[Record]) -> type[Record]:
    """Return the record type of the lines of a kind of rows."""
    fields = {one.name: one for one in msgspec.structs.fields(kind) if one.name != "origin"}
    fields |= {one.name: one for one in msgspec.structs.fields(Origin) if one.name not in SHARED}
    is_timed = fields["rate"].type is Rate
    types = {name: one.type for name, one in fields.items()}
    types |= {"rate": Worked if is_timed else Worked | None, "parts": OwnParts}
    types |= {"run": Text, "device": Text | None}
    defaults = {name: _default(one) for name, one in fields.items() if not one.required}
    defaults["device"] = None
    make: Any = type(Record)
    return cast(type[Record], make(f"{kind.__name__}Line", (Record,), {"__annotations__": types, **defaults}))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


class Reader:
    """Reads lines of one kind of rows from a file, and counts the rows of each run that has no line."""

    def __init__(self, path: Path, kind: type[R], runs: Mapping[str, RunProvenance] | None = None) -> None:
        self.path = path
        self.kind: Any = kind
        self.runs = provenance.read(provenance.beside(path)) if runs is None else runs
        self.unknown: Counter[str] = Counter()
        self._form: Any = _form(kind)

    def row(self, line: bytes) -> Any:
        """Return the row of a line. Raises UnknownRunError if its run has no line, UserError for a row of the
        earlier format, and ValidationError for a line that is not a row."""
        try:
            found = self._form.from_json(line)
        except ValidationError:
            if is_earlier(line):
                raise UserError(
                    f"{self.path} has an earlier format, which is no longer read: move it away and "
                    "measure again."
                ) from None
            raise
        run = self.runs.get(found.run)
        if run is None:
            self.unknown[found.run] += 1
            raise UnknownRunError(found.run)
        fields = {
            name: getattr(found, name)
            for name in self.kind.__struct_fields__
            if name in self._form.__struct_fields__
        }
        timing = found.outcome.timing if "outcome" in fields else found
        fields["rate"] = None if found.rate is None or timing is None else found.rate.over(timing.median_us)
        fields["parts"] = Parts(
            point=digest(found.point.to_dict()),
            source=found.parts.source,
            measurement=run.measurement,
            environment=found.parts.environment,
            settings=run.settings,
        )
        device = found.device or _usual(run.gpu)
        origin = _origin(_Same(run), found.point.kernel, device)
        own = {name: getattr(found, name) for name in Origin.__struct_fields__ if name not in SHARED}
        fields["origin"] = origin.replace(**own)
        return self.kind(**fields)

    def every(
        self, warn: Callable[[str], None], skipped: str, foreign: list[bytes] | None = None
    ) -> list[Any]:
        """Return the rows of the file, in order; none if there is no file. ``warn`` gets a sentence, with
        ``skipped``, on each line that is not a row, and on each run without a line. ``foreign`` gets the
        whole JSON objects that are no rows. Raises UserError for a file that can't be read."""

        def refused(number: int, line: bytes, error: ValidationError) -> None:
            if not isinstance(error, UnknownRunError):
                warn(f"{self.path}:{number} {skipped}")
            if foreign is not None and json_lines.is_object(line):
                foreign.append(line)

        rows = json_lines.read(self.path, self.row, refused)
        for sentence in self.said():
            warn(sentence)
        return rows

    def said(self) -> list[str]:
        """Return a sentence on each run that rows name and that has no line."""
        return without_line(self.path, self.unknown)


class _Same:
    """A run that is equal to itself alone, which makes cache lookups quick."""

    def __init__(self, run: RunProvenance) -> None:
        self.run = run

    def __hash__(self) -> int:
        return id(self.run)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.run is other.run


@lru_cache(maxsize=4096)
def _origin(one: _Same, kernel: str, device: str) -> Origin:
    """Return the origin of a run's rows, with a placeholder for the time of measurement."""
    return one.run.origin(kernel, SOME_TIME, device)


def without_line(path: Path, runs: Mapping[str, int]) -> list[str]:
    """Return a sentence on each run without a line. ``runs`` has the number of rows that name it."""
    where = provenance.beside(path)
    return [
        f"{path}: {count} row{'s name' if count > 1 else ' names'} run {run}, which has no line in {where}; "
        "skipped. Copy that line from the host of the run, or measure the points again."
        for run, count in runs.items()
    ]


SOME_TIME = datetime.fromisoformat("2000-01-01T00:00:00Z")


def is_earlier(line: bytes) -> bool:
    """Whether a line is a row of the earlier format, in which each row holds the data of its run."""
    return json_lines.is_object(line) and isinstance(json.loads(line).get("origin"), dict)
