"""Evidence: rows of profiles, counters and generated code that explain a measurement, joined to the ledger by
its key, and the findings of compute-sanitizer. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import field

from kernel_pipeline import json_lines
from kernel_pipeline.records.base import Record, Values
from kernel_pipeline.records.credentials import MaskedText
from kernel_pipeline.records.fields import Below, Integer, Name, Quantity, Text
from kernel_pipeline.records.point import Point

from .commit import committed_lines
from .results import folders_of, listed


class Joined(Record):
    """The fields that a row of evidence shares with the ledger: the key of the measurement, and its point.

    Both are None for a function if it is not known which points launch it.
    """

    key: Text | None = None
    kernel: Name
    point: Point | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.point is not None and self.point.kernel != self.kernel:
            raise ValueError(f"the point belongs to {self.point.kernel}, not to {self.kernel}")


class Mix(Record):
    """The number of instructions of each kind in a function.

    Loads and stores are counted by the bits that a thread moves at once: ``global_loads_128`` are the widest
    (16 bytes; they include the 32-byte loads of compute capability 10.0), ``global_loads_narrow`` are below
    32 bits. ``predicated`` is the number of global accesses under a predicate, as masked accesses are.
    ``spill_store_bytes`` and ``spill_load_bytes`` are the bytes of a thread's local stores and loads, which
    are spilled registers in a function without local arrays. ``exchanges`` pass registers between the threads
    of a warp (reductions), ``special`` run on the special function unit (exp, reciprocal, ...).
    """

    instructions: Integer = 0
    global_loads_128: Integer = 0
    global_loads_64: Integer = 0
    global_loads_32: Integer = 0
    global_loads_narrow: Integer = 0
    global_stores_128: Integer = 0
    global_stores_64: Integer = 0
    global_stores_32: Integer = 0
    global_stores_narrow: Integer = 0
    predicated: Integer = 0
    shared_loads: Integer = 0
    shared_stores: Integer = 0
    local_loads: Integer = 0
    local_stores: Integer = 0
    spill_load_bytes: Integer = 0
    spill_store_bytes: Integer = 0
    fma: Integer = 0
    special: Integer = 0
    exchanges: Integer = 0
    barriers: Integer = 0
    tensor_core: Integer = 0

    @property
    def spilled_bytes(self) -> int:
        """Bytes that a thread moves to and from local memory."""
        return self.spill_load_bytes + self.spill_store_bytes


class CodeRow(Joined):
    """One function as compiled for one architecture and one point. If ``error`` says why there is no code,
    the numbers are None.

    ``native`` says that this machine's GPU runs this code, so the time of the row with this key is the time
    of this code. ``threads`` is the block size. ``shared`` is in bytes: all that the launch asks for if the
    launch is known (``launch_known``), else the amount that the compiler knows. ``artifact`` is the path of
    the listing, with PTX, SASS and for Triton TTGIR and LLVM IR beside it. ``source`` is the file of a CUDA
    function, ``strategy`` how a launch divides the problem, if its provider tells, or for Triton the values
    that autotune and heuristics chose. ``basis`` is a digest of everything that the row depends on besides
    its key: the code, the tools that disassembled the function, and for a CUDA function the sources of its
    library.
    """

    language: Literal["triton", "gluon", "numba", "cuda", "inductor"]
    architecture: Text | None = None
    native: bool
    function: MaskedText
    error: MaskedText | None = None
    registers: Integer | None = None
    shared: Integer | None = None
    stack: Integer | None = None
    threads: Integer | None = None
    launch_known: bool = False
    blocks_per_sm: Integer | None = None
    occupancy: Quantity | None = None
    limited_by: Text | None = None
    mix: Mix | None = None
    compiler: Text
    environment: Text
    artifact: Below | None = None
    source: Text | None = None
    strategy: MaskedText | None = None
    basis: Text = ""


class Operator(Record):
    """A row of the table ``key_averages``: calls, microseconds and bytes over all recorded calls. The
    ``self`` columns leave out the operators that it calls. On a CPU the device columns are 0."""

    name: MaskedText
    shapes: MaskedText
    calls: Integer
    self_cpu_us: Quantity
    cpu_us: Quantity
    self_device_us: Quantity
    device_us: Quantity
    self_cpu_bytes: Integer
    self_device_bytes: Integer


class DeviceKernel(Record):
    """A device kernel, with its launches and its microseconds per call."""

    name: MaskedText
    launches: Quantity
    us: Quantity


class ProfileRow(Joined):
    """The profile of one point, with times per call in microseconds; ``reason`` says why there is none.

    ``outermost`` are the operators of a call that no other operator calls, in order. If there is only one,
    ``chain`` follows it to the operator that takes most of its time, and so on (torch.square is
    ``aten::square > aten::pow``).

    ``host_us`` is the median over the recorded calls of the host's time from the start of a call until its
    last launch, or of the time of the outermost operators if nothing is launched, as on a CPU. ``device_us``
    is the time that the device is busy. ``table``, ``trace`` and ``flame_graph`` lie below the artifacts; the
    flame graph is there if stacks were recorded.
    """

    status: Text
    reason: MaskedText | None = None
    operators: tuple[Operator, ...] = ()
    kernels: tuple[DeviceKernel, ...] = ()
    outermost: tuple[MaskedText, ...] = ()
    chain: MaskedText | None = None
    host_us: Quantity | None = None
    device_us: Quantity | None = None
    launches: Quantity | None = None
    sentence: MaskedText
    environment: Text
    instrument: Text = ""
    table: Below | None = None
    trace: Below | None = None
    flame_graph: Below | None = None


class NcuRule(Record):
    """The result of one of ncu's rules. ``speedup_pct`` is the gain that the rule estimates, locally or for
    the whole kernel."""

    name: Text
    kind: Text
    text: MaskedText
    speedup_pct: Quantity | None
    scope: Text

    @property
    def gain_pct(self) -> float | None:
        """The estimated gain of the whole kernel, None for a rule with a local estimate."""
        return None if self.scope == "local" else self.speedup_pct


class CounterRow(Joined):
    """The counters of one kernel that a point's call launched, as ncu reports them. Without them, ``reason``
    and ``fix`` have the cause and the remedy.

    ``role`` says why the point was chosen. Percentages are relative to the GPU's peak sustained rate.
    ``stalls`` has, by ncu's name of a warp state, the cycles that a warp spends in that state per issued
    instruction, the longest first. ``sectors_per_load`` and ``sectors_per_store`` are the 32-byte sectors of
    global memory that one request of a warp touches: 4 at best for 4-byte accesses, 16 for 16-byte accesses.
    ``instrument`` is the digest of the sections that were collected.
    """

    role: Text
    status: Literal["ok", "unavailable", "error"]
    reason: MaskedText | None = None
    fix: MaskedText | None = None
    launch: Integer | None = None
    function: MaskedText | None = None
    demangled: MaskedText | None = None
    duration_us: Quantity | None = None
    compute_throughput_pct: Quantity | None = None
    memory_throughput_pct: Quantity | None = None
    dram_throughput_pct: Quantity | None = None
    dram_gbps: Quantity | None = None
    dram_read_bytes: Quantity | None = None
    dram_write_bytes: Quantity | None = None
    l1_hit_pct: Quantity | None = None
    l2_hit_pct: Quantity | None = None
    achieved_occupancy_pct: Quantity | None = None
    theoretical_occupancy_pct: Quantity | None = None
    limited_by: Text | None = None
    registers: Quantity | None = None
    shared_static_bytes: Quantity | None = None
    shared_dynamic_bytes: Quantity | None = None
    grid_size: Quantity | None = None
    block_size_threads: Quantity | None = None
    waves_per_sm: Quantity | None = None
    sectors_per_load: Quantity | None = None
    sectors_per_store: Quantity | None = None
    local_bytes: Quantity | None = None
    stalls: dict[Text, Quantity] = field(default_factory=dict)
    estimated_speedup_pct: Quantity | None = None
    runtime_improvement_us: Quantity | None = None
    rules: tuple[NcuRule, ...] = ()
    bound: Literal["memory", "compute", "latency", "grid"] | None = None
    sentence: MaskedText
    tool: Text | None = None
    report: Below | None = None
    environment: Text
    instrument: Text = ""


class SanitizerRow(Record):
    """The result of one tool for one provider; ``reason`` says why it could not be checked.

    ``problems`` are the problems that it ran, with ``points`` configurations in all. ``errors`` and
    ``warnings`` are the tool's own counts, ``findings`` a line for each kind of them. ``version`` is
    compute-sanitizer's. ``commit`` belongs to the kernel's repository, and ``dirty`` says that the tree had
    edits.
    """

    kernel: str
    provider: str
    tool: str
    status: Literal["clean", "found", "failed"]
    problems: tuple[Values, ...]
    points: int
    errors: int
    warnings: int
    findings: tuple[MaskedText, ...] = ()
    reason: MaskedText | None = None
    version: str
    environment: str
    commit: str
    dirty: bool


def sanitizer_path(folder: Path, kernel: str, gpu: str) -> Path:
    """Return the path of compute-sanitizer's findings for one kernel on one GPU."""
    return folder / "sanitizer" / kernel / f"{gpu}.jsonl"


def joined(point: Point, key: str | None) -> dict[str, Any]:
    """Return the fields of ``Joined`` for a point."""
    return {"key": key, "kernel": point.kernel, "point": point}


R = TypeVar("R", bound=Record)
J = TypeVar("J", bound=Joined)


def read_lines(path: Path, kind: type[R], warn: Callable[[str], None]) -> list[R]:
    """Return the rows of a file, in order; none if there is no file. A line that is not such a row is skipped
    with a sentence to ``warn``."""
    return json_lines.read(path, kind.from_json, json_lines.warning(path, warn, "is not readable; skipped."))


def committed(path: Path, rows: Iterable[R]) -> set[R]:
    """Return the rows of a file that are in git. The listings and traces that rows name are not in git: a
    clone has only the rows, which are enough for everything except showing a listing or a trace.
    """
    lines = set(committed_lines(path))
    return {row for row in rows if row.line().decode().rstrip() in lines}


@dataclass(frozen=True)
class Evidence:
    """The evidence in a results folder, by kernel and machine."""

    profiles: dict[tuple[str, str], list[ProfileRow]]
    counters: dict[tuple[str, str], list[CounterRow]]
    code: dict[tuple[str, str], list[CodeRow]]


def load(folder: Path, warn: Callable[[str], None], local: bool = True) -> Evidence:
    """Read every file of evidence below the folder, and with ``local`` this host's own beside the
    repository's. A line that can't be read, or belongs to another kernel than its folder, is skipped with a
    sentence to ``warn``."""

    def own(path: Path, kind: type[J]) -> list[J]:
        rows = read_lines(path, kind, warn)
        found = [row for row in rows if row.kernel == path.parent.name]
        if count := len(rows) - len(found):
            warn(f"{path} holds {count} row{'s' * (count > 1)} of another kernel; skipped.")
        return found

    def every(name: str, kind: type[J]) -> dict[tuple[str, str], list[J]]:
        paths = [
            path for place in folders_of(folder, local) for path in listed(place, f"{name}/*/*.jsonl", warn)
        ]
        return {(path.parent.name, path.stem): own(path, kind) for path in paths}

    return Evidence(
        profiles=every("profile", ProfileRow),
        counters=every("counters", CounterRow),
        code=every("codegen", CodeRow),
    )
