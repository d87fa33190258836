"""Record one point with torch.profiler: the table of operators, the trace, and the launches of a call."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from kernel_pipeline.files import write_atomically

from ..store.evidence import DeviceKernel, Operator
from .launches import RANGE, DeviceLaunch, callers_first, calls_of, end, holds, parse, spans, whole

if TYPE_CHECKING:
    from kernel_pipeline.loading import Tensors

WAIT, WARM_UP, ACTIVE = 1, 2, 3
"""The numbers of calls before the profiler starts, while it warms up, and while it records."""


@dataclass(frozen=True)
class Profiled:
    """A profile of a point.

    ``operators`` and ``table`` are the table of operators as rows and as text. ``trace`` is gzipped JSON.
    ``launches`` are the launches of all recorded calls. ``outermost`` and ``chain`` come from ``nesting``.
    ``host_us`` is a call's time on the host."""

    operators: tuple[Operator, ...]
    table: str
    trace: bytes
    launches: tuple[DeviceLaunch, ...]
    outermost: tuple[str, ...]
    chain: str | None
    host_us: float


def record(
    call: Callable[..., Any],
    inputs: Tensors,
    key: str,
    stacks: bool,
    tensorboard: Path | None,
) -> Profiled:
    """Profile calls on the inputs' device, with shapes and memory. ``stacks`` adds Python stacks.
    ``tensorboard`` is a folder for a copy of the trace, which TensorBoard's profiler plugin reads."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    on_gpu = inputs[0].device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    synchronize = torch.cuda.synchronize if on_gpu else _nothing
    call(*inputs)  # compile outside the profile
    synchronize()
    finished: list[Path] = []
    with tempfile.TemporaryDirectory() as folder:

        def keep(profiler: Any) -> None:
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            finished.append(path)

        with (
            _quiet(),
            profile(
                activities=activities,
                schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1),
                on_trace_ready=keep,
                record_shapes=True,
                profile_memory=True,
                with_stack=stacks,
            ) as profiler,
        ):
            for _ in range(WAIT + WARM_UP + ACTIVE):
                with record_function(RANGE + key):
                    call(*inputs)
                    synchronize()
                profiler.step()
        raw = re.sub(r'\n *"host_name": "[^"]*",', "", whole(finished[0].read_bytes())).encode()
    if tensorboard is not None:
        # TensorBoard's profiler plugin looks for WORKER.pt.trace.json; the point's key is the worker's name.
        write_atomically(tensorboard / f"{key}.pt.trace.json", raw)
    averages: Any = profiler.key_averages(group_by_input_shape=True)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    trace = json.loads(raw)
    names = operator_names(trace)
    frames = {str(e["name"]) for e in trace["traceEvents"] if e.get("cat") == "python_function"}
    averages[:] = [event for event in averages if str(event.key) not in frames]
    outermost, chain = nesting(trace)
    return Profiled(
        operators=tuple(
            sorted(
                (_operator(event) for event in averages if in_trace(str(event.key)) in names), key=_by_time
            )
        ),
        table=averages.table(sort_by=order, row_limit=-1, max_name_column_width=90),
        trace=gzip.compress(raw, mtime=0),
        launches=tuple(parse(trace).get(key, ())),
        outermost=outermost,
        chain=chain,
        host_us=host_us(trace),
    )


def operator_names(trace: Mapping[str, Any]) -> set[str]:
    """Return the names of operators, of libraries' ranges, and of runtime and device events in a trace.
    Python frames and the profiler's own events are left out."""
    return {
        str(event["name"])
        for event in trace["traceEvents"]
        if event.get("cat") in ("cpu_op", "user_annotation", *LAUNCHING, *ON_DEVICE)
        and not str(event["name"]).startswith((RANGE, "ProfilerStep"))
    }


def in_trace(name: str) -> str:
    """Return the name of a range as torch writes it to a trace."""
    written = name.replace("\n", "").replace("\\", "/")
    return written if written.isascii() and written.isprintable() else "unknown"


def _operator(event: Any) -> Operator:
    return Operator(
        name=plain(str(event.key))[:200],
        shapes="" if not any(event.input_shapes or ()) else str(event.input_shapes),
        calls=event.count,
        self_cpu_us=round(event.self_cpu_time_total, 3),
        cpu_us=round(event.cpu_time_total, 3),
        self_device_us=round(event.self_device_time_total, 3),
        device_us=round(event.device_time_total, 3),
        self_cpu_bytes=event.self_cpu_memory_usage,
        self_device_bytes=event.self_device_memory_usage,
    )


def _by_time(operator: Operator) -> tuple[float, float, str]:
    return -operator.self_device_us, -operator.self_cpu_us, operator.name


DYNAMO_LOOKUP = "TorchDynamo Cache Lookup"
"""The profiler's name for Dynamo's lookup of a compiled function that fits the arguments."""


def plain(name: str) -> str:
    """Remove the parts of an operator's name that differ from one compilation to the next."""
    name = re.sub(r"## Call CompiledFxGraph \w+ ##", "CompiledFxGraph", name)
    return re.sub(r"(Torch-Compiled Region): \d+/\d+", r"\1", name)


def nesting(trace: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """Return the outermost operators of the last recorded call, and the chain of operators below the only
    outermost operator. Each link of the chain takes at least half the time of its caller. The chain is None
    if there are several outermost operators or none.
    """
    calls = calls_of(trace)
    if not calls:
        return (), None
    within = _operators(trace, calls[-1])
    # Leave out Dynamo's lookup, which is beside the compiled function.
    outermost = [event for event in _outermost(within) if event["name"] != DYNAMO_LOOKUP]
    chain = list(outermost) if len(outermost) == 1 else []
    while chain:
        parts = _outermost([e for e in within if e is not chain[-1] and holds(chain[-1], e)])
        longest = max(parts, key=lambda event: float(event["dur"]), default=None)
        if longest is None or float(longest["dur"]) < float(chain[-1]["dur"]) / 2:
            break
        chain.append(longest)
    return (
        tuple(plain(str(event["name"])) for event in outermost),
        " > ".join(plain(str(event["name"])) for event in chain) or None,
    )


def host_us(trace: Mapping[str, Any]) -> float:
    """Return a call's time on the host in microseconds, as the median of the recorded calls.

    On a GPU the time runs from the call's start to the end of its last launch. This includes launchers that
    are not operators, such as Triton's. For a call without a launch it is the sum of the outermost operators,
    with Dynamo's lookup."""
    calls = [_until_last_launch(trace, span) for span in calls_of(trace)]
    return median(calls) if calls else 0.0


def _until_last_launch(trace: Mapping[str, Any], span: Mapping[str, Any]) -> float:
    led_to = {event["args"].get("correlation") for event in spans(trace, ON_DEVICE)}
    launched = [
        end(event)
        for event in spans(trace, LAUNCHING)
        if event["tid"] == span["tid"]
        and event.get("args", {}).get("correlation") in led_to
        and holds(span, event)
    ]
    if launched:
        return max(launched) - float(span["ts"])
    return sum(float(event["dur"]) for event in _outermost(_operators(trace, span)))


ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHING = ("cuda_runtime", "cuda_driver")
"""The categories of trace events on the device, and of the host's runtime calls that launch them."""


def _operators(trace: Mapping[str, Any], span: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the operators of one call, sorted by begin, callers first."""
    operators = spans(trace, ("cpu_op",))
    inside = (event for event in operators if event["tid"] == span["tid"] and holds(span, event))
    return sorted(inside, key=callers_first)


def _outermost(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events that no other event encloses. ``events`` are sorted by begin."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        if not found or not holds(found[-1], event):
            found.append(event)
    return found


def a_call(launches: Sequence[DeviceLaunch]) -> tuple[DeviceKernel, ...]:
    """Return the kernels that one call launches, longest first, as averages of the recorded calls."""
    count = Counter(launch.name for launch in launches)
    time: Counter[str] = Counter()
    for launch in launches:
        time[launch.name] += launch.duration_us  # type: ignore[assignment]
    return tuple(
        DeviceKernel(name=name[:300], launches=count[name] / ACTIVE, us=round(us / ACTIVE, 3))
        for name, us in time.most_common()
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Discard what torch 2.13's native profiler logs to stderr. Python exceptions are still raised."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _nothing() -> None:
    """Do nothing: a CPU needs no synchronization."""
