"""What the stages that ask why leave behind: rows of profiles, counters and generated code, joined to the
ledger by its key. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from kernels.point import Point, extent
from pipeline.measure.ledger import write_atomically
from pipeline.measure.record import Record
from pipeline.measure.sass import Mix


class Joined(Record):
    """What a row of evidence shares with the ledger: the key of the measurement, and its point's fields.

    ``key`` is None for a function of which it is not known here which points launch it.
    """

    key: str | None
    kernel: str
    provider: str | None = None
    size: int | None = None
    dtype: str | None = None
    block_size: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    rows: int | None = None

    @property
    def extent(self) -> str:
        """``Point.extent`` of the row's point."""
        return extent(self.size, self.rows)

    @property
    def point(self) -> Point | None:
        """The row's point; None for a function of which it is not known which points launch it."""
        if self.provider is None or self.size is None or self.dtype is None:
            return None
        return Point(**{field.name: getattr(self, field.name) for field in fields(Point)})


class CodeRow(Joined):
    """One function as compiled for one architecture, for one point; numbers are None where ``error`` says why
    there is no code.

    ``native`` tells the code that this machine's GPU runs, so the rows whose key's time is about this very
    code. ``threads`` is the block's, ``shared`` its bytes of shared memory: all that a launch asks for where
    the launch is known (``launch_known``), else what the compiler knows. ``artifact`` is where its listing
    lies, with PTX, SASS and TTGIR beside it.
    """

    language: Literal["triton", "cuda", "inductor"]
    architecture: str | None
    native: bool
    function: str
    error: str | None = None
    registers: int | None = None
    shared: int | None = None
    stack: int | None = None
    threads: int | None = None
    launch_known: bool = False
    blocks_per_sm: int | None = None
    occupancy: float | None = None
    limited_by: str | None = None
    mix: Mix | None = None
    compiler: str
    environment: str
    artifact: str | None = None

    def row(self) -> dict[str, Any]:
        """The flat form that a file holds; the mix's fields stand beside the others."""
        row = self.model_dump(mode="json", exclude={"mix"})
        return row | (self.mix.model_dump() if self.mix else dict.fromkeys(Mix.model_fields))

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> CodeRow:
        """Rebuild a record from its flat form; raises pydantic.ValidationError for anything else."""
        rest = dict(row)
        mixed = {name: rest.pop(name, None) for name in Mix.model_fields}
        counted = any(value is not None for value in mixed.values())
        return cls.model_validate(rest | {"mix": mixed if counted else None})


class Operator(Record):
    """A row of the table ``key_averages``: calls, microseconds and bytes over all recorded calls; ``self`` is
    without what the operator calls. On a CPU the device columns are 0."""

    name: str
    shapes: str
    calls: int
    self_cpu_us: float
    cpu_us: float
    self_device_us: float
    device_us: float
    self_cpu_bytes: int
    self_device_bytes: int


class Kernel(Record):
    """A device kernel, how often one call launches it, and its microseconds a call."""

    name: str
    launches: float
    us: float


class ProfileRow(Joined):
    """What the profiler shows of one point, times a call in microseconds, or in ``reason`` why there is none.

    ``outermost`` are the operators of a call that no other calls, in their order. Where there is one,
    ``chain`` follows it to the part that takes most of it, and so on (torch.square is
    ``aten::square > aten::pow``).
    ``host_us`` is what the host takes from the call's begin until its last launch, on a CPU what these
    operators take, the median of the recorded calls; ``device_us`` is what the device is busy for.
    """

    status: str
    reason: str | None = None
    shape: tuple[int, ...] = ()
    operators: tuple[Operator, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    outermost: tuple[str, ...] = ()
    chain: str | None = None
    host_us: float | None = None
    device_us: float | None = None
    launches: float | None = None
    sentence: str
    environment: str
    table: str | None = None
    trace: str | None = None


class Rule(Record):
    """What one of ncu's rules says; ``speedup_pct`` is what it estimates could be gained, locally or over the
    whole kernel."""

    name: str
    kind: str
    text: str
    speedup_pct: float | None
    scope: str

    @property
    def gain_pct(self) -> float | None:
        """What the whole kernel could gain; what a local rule estimates is not that."""
        return None if self.scope == "local" else self.speedup_pct


class CounterRow(Joined):
    """One kernel that a point's call launched, as ncu counted it, or in ``reason`` and ``fix`` why not.

    ``role`` says why the point was looked into. Percentages are of what the GPU sustains at its peak.
    ``stalls`` are, by ncu's name of a warp's state, the cycles that a warp spends in it for each instruction
    that it issues, the longest first. ``sectors_per_load`` and ``sectors_per_store`` are the 32-byte pieces
    of global memory that a warp's request touches: 4 at best for 4-byte accesses, 16 for 16-byte ones.
    """

    role: str
    status: Literal["ok", "unavailable", "error"]
    reason: str | None = None
    fix: str | None = None
    launch: int | None = None
    function: str | None = None
    demangled: str | None = None
    duration_us: float | None = None
    compute_throughput_pct: float | None = None
    memory_throughput_pct: float | None = None
    dram_throughput_pct: float | None = None
    dram_gbps: float | None = None
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l1_hit_pct: float | None = None
    l2_hit_pct: float | None = None
    achieved_occupancy_pct: float | None = None
    theoretical_occupancy_pct: float | None = None
    limited_by: str | None = None
    registers: float | None = None
    shared_static_bytes: float | None = None
    shared_dynamic_bytes: float | None = None
    grid_size: float | None = None
    block_size_threads: float | None = None
    waves_per_sm: float | None = None
    sectors_per_load: float | None = None
    sectors_per_store: float | None = None
    local_bytes: float | None = None
    stalls: dict[str, float] = Field(default_factory=dict)
    estimated_speedup_pct: float | None = None
    runtime_improvement_us: float | None = None
    rules: tuple[Rule, ...] = ()
    bound: Literal["memory", "compute", "latency", "grid"] | None = None
    sentence: str
    tool: str | None = None
    report: str | None = None
    environment: str


def joined(point: Point, key: str | None) -> dict[str, Any]:
    """The fields of ``Joined`` for a point."""
    return {"key": key, **asdict(point)}


R = TypeVar("R", bound=Record)


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a file of rows atomically, a JSON line each."""
    write_atomically(path, b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows))


def read_lines(path: Path, make: Callable[[dict[str, Any]], R], warn: Callable[[str], None]) -> list[R]:
    """The rows of a file, in its order; none if there is no file. A line that is no such row is skipped with
    a sentence to ``warn``."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(make(json.loads(line)))
        except (ValueError, TypeError, ValidationError):
            warn(f"{path}:{number} is not readable; skipped.")
    return rows


@dataclass(frozen=True)
class Evidence:
    """All that a results folder holds of it, by kernel and machine."""

    profiles: dict[tuple[str, str], list[ProfileRow]]
    counters: dict[tuple[str, str], list[CounterRow]]
    code: dict[tuple[str, str], list[CodeRow]]


NOTHING = Evidence({}, {}, {})


def load(folder: Path, warn: Callable[[str], None]) -> Evidence:
    """Read every file of rows below the folder; a line that can't be read is skipped with a sentence."""

    def every(kind: str, make: Callable[[dict[str, Any]], R]) -> dict[tuple[str, str], list[R]]:
        paths = sorted((folder / kind).glob("*/*.jsonl"))
        return {(path.parent.name, path.stem): read_lines(path, make, warn) for path in paths}

    return Evidence(
        profiles=every("profile", ProfileRow.model_validate),
        counters=every("counters", CounterRow.model_validate),
        code=every("codegen", CodeRow.from_row),
    )
