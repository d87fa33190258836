"""One point under torch.profiler: its table of operators, its trace, and what one call launches."""

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
from typing import Any

import torch

from kernels.contract import Inputs
from pipeline.measure.evidence import Kernel, Operator
from pipeline.measure.launches import RANGE, Launch, parse
from pipeline.measure.ledger import write_atomically

WAIT, WARM_UP, ACTIVE = 1, 2, 3
"""Calls before the profiler is switched on, while it warms up, and that it records."""


@dataclass(frozen=True)
class Profiled:
    """What a profile is made of: the rows and the text of the table, the trace, and the device kernels."""

    operators: tuple[Operator, ...]
    table: str
    trace: bytes
    launches: tuple[Launch, ...]
    outermost: tuple[str, ...]
    chain: str | None
    host_us: float


def record(
    call: Callable[..., torch.Tensor],
    inputs: Inputs,
    key: str,
    stacks: bool,
    tensorboard: Path | None,
) -> Profiled:
    """Profile calls on the inputs' device: shapes and memory always, Python stacks if asked, and a copy of
    the trace for TensorBoard's profiler plugin if a folder is named."""
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    on_gpu = inputs[0].device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    synchronize = torch.cuda.synchronize if on_gpu else _nothing
    call(*inputs)  # what torch.compile and Triton compile is no part of a call
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
        raw = re.sub(rb'\n *"host_name": "[^"]*",', b"", finished[0].read_bytes())
    if tensorboard is not None:
        # The name that its profiler plugin looks for; the point's key stands for the worker.
        write_atomically(tensorboard / f"{key}.pt.trace.json", raw)
    averages = profiler.key_averages(group_by_input_shape=True)
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    trace = json.loads(raw)
    outermost, chain, host_us = nesting(trace)
    return Profiled(
        operators=tuple(sorted(map(_operator, filter(_is_operator, averages)), key=_by_time)),
        table=averages.table(sort_by=order, row_limit=-1, max_name_column_width=90),
        trace=gzip.compress(raw, mtime=0),
        launches=tuple(parse(trace).get(key, ())),
        outermost=outermost,
        chain=chain,
        host_us=host_us,
    )


def _is_operator(event: Any) -> bool:
    return not str(event.key).startswith((RANGE, "ProfilerStep", "Activity Buffer"))


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
"""What the profiler calls Dynamo's search for a compiled function that fits the arguments."""


def plain(name: str) -> str:
    """An operator's name without what differs from one compilation to the next."""
    name = re.sub(r"## Call CompiledFxGraph \w+ ##", "CompiledFxGraph", name)
    return re.sub(r"(Torch-Compiled Region): \d+/\d+", r"\1", name)


def nesting(trace: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None, float]:
    """Of the last recorded call: its outermost operators, the chain of the only one (None if there are
    several), and the microseconds that they take on the host, Dynamo's lookup included."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    spans = [e for e in events if e.get("cat") == "user_annotation" and str(e["name"]).startswith(RANGE)]
    if not spans:
        return (), None, 0.0
    last = max(spans, key=lambda event: float(event["ts"]))
    within = sorted(
        (e for e in events if e.get("cat") == "cpu_op" and e["tid"] == last["tid"] and _holds(last, e)),
        key=lambda event: (float(event["ts"]), -float(event["dur"])),
    )
    alone = _outermost(within)
    # What Dynamo does before a compiled function's code is no part of it, but takes the host's time.
    outermost = [event for event in alone if event["name"] != DYNAMO_LOOKUP]
    chain = list(outermost) if len(outermost) == 1 else []
    while chain:
        parts = _outermost([e for e in within if e is not chain[-1] and _holds(chain[-1], e)])
        longest = max(parts, key=lambda event: float(event["dur"]), default=None)
        if longest is None or float(longest["dur"]) < float(chain[-1]["dur"]) / 2:
            break
        chain.append(longest)
    return (
        tuple(plain(str(event["name"])) for event in outermost),
        " > ".join(plain(str(event["name"])) for event in chain) or None,
        sum(float(event["dur"]) for event in alone),
    )


def _holds(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    begin, end = float(inner["ts"]), float(inner["ts"]) + float(inner["dur"])
    return float(outer["ts"]) <= begin and end <= float(outer["ts"]) + float(outer["dur"])


def _outermost(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of events sorted by their begin, those that lie in no other."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        if not found or not _holds(found[-1], event):
            found.append(event)
    return found


def a_call(launches: Sequence[Launch]) -> tuple[Kernel, ...]:
    """The kernels that one call launches, those that take longest first."""
    count = Counter(launch.name for launch in launches)
    time: Counter[str] = Counter()
    for launch in launches:
        time[launch.name] += launch.duration_us  # type: ignore[assignment]
    return tuple(
        Kernel(name=name[:300], launches=count[name] / ACTIVE, us=round(us / ACTIVE, 3))
        for name, us in time.most_common()
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines that torch 2.13's native profiler logs to stderr; Python's own errors still arise."""
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
    """A CPU has nothing to wait for."""
